//! Checks of values that the crate `parquet` leaves out: a decimal has no more digits than its type, JSON is text, and maps have their keys.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Decimal256Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType};

use super::failure::{Failure, Result};
use super::strings::within;

/// Checks the columns of a batch.
pub fn check_values(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        check_array(column).map_err(|wrong| match wrong {
            Wrong::Text => not_text(field.name()),
            Wrong::Digits(kind) => Failure::Damaged(format!(
                "column '{:.200}' has a number of more digits than {kind}",
                field.name()
            )),
            Wrong::Key => Failure::Damaged(format!(
                "column '{:.200}' has a map with an entry or a key that is null",
                field.name()
            )),
        })?;
    }
    Ok(())
}

/// The error for a column whose text is not text.
pub fn not_text(column: &str) -> Failure {
    Failure::NotText(format!("column '{column:.200}' has text that is not UTF-8"))
}

enum Wrong {
    Text,
    Digits(String),
    Key,
}

fn check_array(array: &ArrayRef) -> std::result::Result<(), Wrong> {
    let digits =
        |valid: std::result::Result<(), ArrowError>, name: &str, precision: u8, scale: i8| {
            valid.map_err(|_| Wrong::Digits(format!("{name}({precision}, {scale})")))
        };
    match array.data_type() {
        DataType::Utf8View => {
            let bytes = array.as_string_view().clone().to_binary_view();
            bytes.to_string_view().map(drop).map_err(|_| Wrong::Text)
        }
        DataType::Decimal128(precision, scale) => {
            let valid = array
                .as_primitive::<Decimal128Type>()
                .validate_decimal_precision(*precision);
            digits(valid, "decimal128", *precision, *scale)
        }
        DataType::Decimal256(precision, scale) => {
            let valid = array
                .as_primitive::<Decimal256Type>()
                .validate_decimal_precision(*precision);
            digits(valid, "decimal256", *precision, *scale)
        }
        DataType::Struct(_) => array.as_struct().columns().iter().try_for_each(check_array),
        DataType::List(_) => check_array(&within(
            array.as_list::<i32>().offsets(),
            array.as_list::<i32>().values(),
        )),
        DataType::Map(..) => {
            let map = array.as_map();
            // pyarrow ends the process if it gets one.
            if map.entries().null_count() > 0 || map.keys().null_count() > 0 {
                return Err(Wrong::Key);
            }
            check_array(&within(
                map.offsets(),
                &(Arc::new(map.entries().clone()) as ArrayRef),
            ))
        }
        _ => Ok(()),
    }
}

/// Whether a type has what is checked. Text counts only if it may be JSON, as the crate checks any other.
pub fn is_checked(kind: &DataType, json: bool) -> bool {
    match kind {
        DataType::Utf8View => json,
        DataType::Decimal128(..) | DataType::Decimal256(..) => true,
        DataType::Struct(fields) => fields
            .iter()
            .any(|field| is_checked(field.data_type(), json)),
        DataType::Map(..) => true,
        DataType::List(item) => is_checked(item.data_type(), json),
        _ => false,
    }
}

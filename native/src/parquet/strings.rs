//! Strings for consumers without views. Each is copied, so a batch is cut where a dictionary's strings repeat too often.

use std::sync::Arc;

use arrow_array::builder::{GenericByteBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{BinaryType, ByteArrayType};
use arrow_array::{
    Array, ArrayRef, GenericByteArray, ListArray, MapArray, RecordBatch, RecordBatchOptions,
    StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};

use super::charge::OPEN_BYTES;
use super::failure::{Result, damaged, too_large};

/// Bytes of strings in a batch, at most, unless it has one row.
const BATCH_BYTES: u64 = 32 << 20;

/// The fields with plain strings for views.
pub fn plain_fields(fields: &Fields) -> Fields {
    fields.iter().map(plain_field).collect()
}

fn plain_field(field: &FieldRef) -> FieldRef {
    let kind = plain_type(field.data_type());
    if kind == *field.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(Field::clone(field).with_data_type(kind))
    }
}

fn plain_type(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Struct(fields) => DataType::Struct(plain_fields(fields)),
        DataType::List(item) => DataType::List(plain_field(item)),
        DataType::Map(entries, sorted) => DataType::Map(plain_field(entries), *sorted),
        other => other.clone(),
    }
}

/// A batch with plain strings of its first rows, as many as are not too large together, and the rows after them.
pub fn plain_batch(batch: &RecordBatch) -> Result<(RecordBatch, Option<RecordBatch>)> {
    let mut rows = batch.num_rows();
    let mut part = batch.clone();
    loop {
        let size = part
            .columns()
            .iter()
            .map(|column| text_bytes(column))
            .fold(0, u64::saturating_add);
        if size <= BATCH_BYTES {
            break;
        }
        if rows <= 1 {
            if size > OPEN_BYTES {
                return Err(too_large!(
                    "a row has {size} bytes of strings; at most {OPEN_BYTES} are read"
                ));
            }
            break;
        }
        rows = rows.div_ceil(2);
        part = batch.slice(0, rows);
    }
    let columns = part
        .columns()
        .iter()
        .map(|column| plain(column, None))
        .collect::<Result<Vec<_>>>()?;
    let schema = Schema::new(plain_fields(batch.schema_ref().fields()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let plain = RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)?;
    let left = batch.num_rows() - rows;
    Ok((plain, (left > 0).then(|| batch.slice(rows, left))))
}

/// Bytes of all strings in an array once they are copied.
fn text_bytes(array: &dyn Array) -> u64 {
    let lengths = |views: &[u128]| views.iter().map(|view| u64::from(*view as u32)).sum();
    match array.data_type() {
        DataType::Utf8View => lengths(array.as_string_view().views()),
        DataType::BinaryView => lengths(array.as_binary_view().views()),
        DataType::Struct(_) => array
            .as_struct()
            .columns()
            .iter()
            .map(|column| text_bytes(column))
            .sum(),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            text_bytes(&within(list.offsets(), list.values()))
        }
        DataType::Map(..) => {
            let map = array.as_map();
            text_bytes(&within(
                map.offsets(),
                &(Arc::new(map.entries().clone()) as ArrayRef),
            ))
        }
        _ => 0,
    }
}

/// An array with plain strings. `outer` are the nulls of the structs that it is in: a struct that is never null has none of its own, but its
/// children may be null where these are.
fn plain(array: &ArrayRef, outer: Option<&NullBuffer>) -> Result<ArrayRef> {
    if plain_type(array.data_type()) == *array.data_type() {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Utf8View => {
            let views = array.as_string_view();
            let mut builder = StringBuilder::with_capacity(views.len(), text_bytes(array) as usize);
            if views.null_count() > 0 {
                views.iter().for_each(|text| builder.append_option(text));
            } else {
                (0..views.len()).for_each(|place| builder.append_value(views.value(place)));
            }
            finished(builder)
        }
        DataType::BinaryView => {
            let views = array.as_binary_view();
            let mut builder = GenericByteBuilder::<BinaryType>::with_capacity(
                views.len(),
                text_bytes(array) as usize,
            );
            views.iter().for_each(|bytes| builder.append_option(bytes));
            finished(builder)
        }
        DataType::Struct(fields) => {
            let known = array.as_struct();
            let nulls = NullBuffer::union(known.nulls(), outer);
            let columns = known
                .columns()
                .iter()
                .map(|column| plain(column, nulls.as_ref()));
            let columns = columns.collect::<Result<Vec<_>>>()?;
            Arc::new(StructArray::try_new_with_length(
                plain_fields(fields),
                columns,
                nulls,
                known.len(),
            )?)
        }
        DataType::List(item) => {
            let list = array.as_list::<i32>();
            let values = plain(&within(list.offsets(), list.values()), None)?;
            Arc::new(ListArray::try_new(
                plain_field(item),
                from_zero(list.offsets()),
                values,
                list.nulls().cloned(),
            )?)
        }
        DataType::Map(entries, sorted) => {
            let map = array.as_map();
            let inner = plain(
                &within(
                    map.offsets(),
                    &(Arc::new(map.entries().clone()) as ArrayRef),
                ),
                None,
            )?;
            let (offsets, nulls) = (from_zero(map.offsets()), map.nulls().cloned());
            Arc::new(MapArray::try_new(
                plain_field(entries),
                offsets,
                inner.as_struct().clone(),
                nulls,
                *sorted,
            )?)
        }
        other => return Err(damaged!("strings within {other}")),
    })
}

fn finished<T: ByteArrayType>(mut builder: GenericByteBuilder<T>) -> ArrayRef
where
    GenericByteArray<T>: Array,
{
    Arc::new(builder.finish())
}

/// The values that a list's rows have, as a slice may have fewer rows.
pub fn within(offsets: &OffsetBuffer<i32>, values: &ArrayRef) -> ArrayRef {
    let (start, end) = (offsets[0] as usize, offsets[offsets.len() - 1] as usize);
    values.slice(start, end - start)
}

fn from_zero(offsets: &OffsetBuffer<i32>) -> OffsetBuffer<i32> {
    let first = offsets[0];
    if first == 0 {
        return offsets.clone();
    }
    OffsetBuffer::new(
        offsets
            .iter()
            .map(|offset| offset - first)
            .collect::<ScalarBuffer<i32>>(),
    )
}

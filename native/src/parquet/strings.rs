//! Strings for consumers without views. Each is copied, so a batch is cut where a dictionary's strings repeat too often.
//!
//! The copies are binaries in memory, which the schema of the stream calls strings: both have the same buffers. The crate `parquet` has checked
//! their text, and to make strings of them would check it again, in a twentieth of the time of all.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteViewType;
use arrow_array::{
    Array, ArrayRef, BinaryArray, GenericByteViewArray, ListArray, MapArray, RecordBatch,
    RecordBatchOptions, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};

use super::charge::OPEN_BYTES;
use super::failure::{Failure, Result, damaged, too_large};

/// Bytes of strings in a batch, at most, unless it has one row.
const BATCH_BYTES: u64 = 32 << 20;

/// Bytes that are copied at a time. Most strings have fewer.
const COPIED: usize = 64;

/// The fields as readers get them: with plain strings for views.
pub fn plain_fields(fields: &Fields) -> Fields {
    fields_with(fields, &DataType::Utf8)
}

/// The fields as batches have them: with binaries for views.
pub fn copied_fields(fields: &Fields) -> Fields {
    fields_with(fields, &DataType::Binary)
}

fn fields_with(fields: &Fields, text: &DataType) -> Fields {
    let plain = fields.iter().map(|field| field_with(field, text));
    plain.collect()
}

fn field_with(field: &FieldRef, text: &DataType) -> FieldRef {
    let kind = type_with(field.data_type(), text);
    if kind == *field.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(Field::clone(field).with_data_type(kind))
    }
}

fn type_with(kind: &DataType, text: &DataType) -> DataType {
    match kind {
        DataType::Utf8View => text.clone(),
        DataType::BinaryView => DataType::Binary,
        DataType::Struct(fields) => DataType::Struct(fields_with(fields, text)),
        DataType::List(item) => DataType::List(field_with(item, text)),
        DataType::Map(entries, sorted) => DataType::Map(field_with(entries, text), *sorted),
        other => other.clone(),
    }
}

fn copied_field(field: &FieldRef) -> FieldRef {
    field_with(field, &DataType::Binary)
}

/// A batch with plain strings of its first rows, as many as are not too large together, and the rows after them.
pub fn plain_batch(batch: &RecordBatch) -> Result<(RecordBatch, Option<RecordBatch>)> {
    let mut rows = batch.num_rows();
    let mut part = batch.clone();
    let columns = loop {
        let mut left = if rows > 1 { BATCH_BYTES } else { OPEN_BYTES };
        let columns = part
            .columns()
            .iter()
            .map(|column| plain(column, None, &mut left));
        match columns.collect::<Result<Vec<_>>>() {
            Err(Failure::FewerRows) if rows > 1 => {
                rows = rows.div_ceil(2);
                part = batch.slice(0, rows);
            }
            Err(Failure::FewerRows) => {
                return Err(too_large!(
                    "a row has more than {OPEN_BYTES} bytes of strings"
                ));
            }
            columns => break columns?,
        }
    };
    let schema = Schema::new(copied_fields(batch.schema_ref().fields()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let plain = RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)?;
    let left = batch.num_rows() - rows;
    Ok((plain, (left > 0).then(|| batch.slice(rows, left))))
}

/// An array with plain strings. `outer` are the nulls of the structs that it is in: a struct that is never null has none of its own, but its
/// children may be null where these are. If its strings have more than `left` bytes, there must be fewer rows.
fn plain(array: &ArrayRef, outer: Option<&NullBuffer>, left: &mut u64) -> Result<ArrayRef> {
    if type_with(array.data_type(), &DataType::Binary) == *array.data_type() {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Utf8View => copied(array.as_string_view(), left)?,
        DataType::BinaryView => copied(array.as_binary_view(), left)?,
        DataType::Struct(fields) => {
            let known = array.as_struct();
            let nulls = NullBuffer::union(known.nulls(), outer);
            let columns = known
                .columns()
                .iter()
                .map(|column| plain(column, nulls.as_ref(), left));
            let columns = columns.collect::<Result<Vec<_>>>()?;
            Arc::new(StructArray::try_new_with_length(
                copied_fields(fields),
                columns,
                nulls,
                known.len(),
            )?)
        }
        DataType::List(item) => {
            let list = array.as_list::<i32>();
            let values = plain(&within(list.offsets(), list.values()), None, left)?;
            Arc::new(ListArray::try_new(
                copied_field(item),
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
                left,
            )?;
            let (offsets, nulls) = (from_zero(map.offsets()), map.nulls().cloned());
            Arc::new(MapArray::try_new(
                copied_field(entries),
                offsets,
                inner.as_struct().clone(),
                nulls,
                *sorted,
            )?)
        }
        other => return Err(damaged!("strings within {other}")),
    })
}

/// Strings or binaries one after the other.
fn copied(array: &GenericByteViewArray<impl ByteViewType>, left: &mut u64) -> Result<ArrayRef> {
    let (views, nulls) = (array.views(), array.nulls());
    let length_of = |view: &u128| *view as u32 as usize;
    let offsets = if let Some(nulls) = nulls {
        let lengths = views.iter().zip(nulls);
        OffsetBuffer::<i32>::try_from_lengths(
            lengths.map(|(view, is_valid)| if is_valid { length_of(view) } else { 0 }),
        )
    } else {
        OffsetBuffer::<i32>::try_from_lengths(views.iter().map(length_of))
    }
    .map_err(|_| Failure::FewerRows)?;
    let size = offsets.last() as usize;
    *left = left.checked_sub(size as u64).ok_or(Failure::FewerRows)?;
    let mut bytes = Vec::with_capacity(size + COPIED);
    for (view, end) in views.iter().zip(&offsets[1..]) {
        // More bytes than the string has, and then fewer: copying as many each time takes a third of the time.
        let (start, end) = (bytes.len(), *end as usize);
        if end - start <= MAX_INLINE_VIEW_LEN as usize {
            bytes.extend_from_slice(&view.to_le_bytes()[4..]);
        } else {
            let view = ByteView::from(*view);
            let source = &array.data_buffers()[view.buffer_index as usize][view.offset as usize..];
            match source.first_chunk::<COPIED>() {
                Some(chunk) if end - start <= COPIED => bytes.extend_from_slice(chunk),
                _ => bytes.extend_from_slice(&source[..end - start]),
            }
        }
        bytes.truncate(end);
    }
    Ok(Arc::new(BinaryArray::try_new(
        offsets,
        bytes.into(),
        nulls.cloned(),
    )?))
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

//! Entry points of fuzz targets: the reader without Python. An input that breaks a promise ends the process.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use arrow_array::{Array, BooleanArray, RecordBatch};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::RowSelector;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;

use super::batches::{Batches, Request};
use super::charge::lock;
use super::delta;
use super::failure::Result;
use super::file::OpenFile;
use super::source::Source;
use super::thrift::{PageHeader, check_footer};

/// Rows of a file that is read several times, at most.
const FEW_ROWS: usize = 20_000;
/// Rows that are read of a file, at most: a few bytes can be millions of nulls.
const MANY_ROWS: usize = 5_000_000;

/// The column of `read_column`, by its first byte.
const COLUMNS: [&str; 18] = [
    "optional int64 c",
    "optional binary c (UTF8)",
    "optional boolean c",
    "required int32 c",
    "optional int96 c",
    "optional double c",
    "optional fixed_len_byte_array(5) c",
    "required binary c",
    "optional fixed_len_byte_array(16) c (DECIMAL(38, 5))",
    "optional int32 c (DECIMAL(9, 2))",
    "optional binary c (JSON)",
    "optional group c (LIST) { repeated group list { optional int64 element; } }",
    "optional group c (LIST) { repeated group list { optional binary element (UTF8); } }",
    "required group c (LIST) { repeated group list { required boolean element; } }",
    "optional group c { optional group d { optional int32 e; } }",
    "optional group c (LIST) { repeated group list { optional group element (LIST) { repeated group list { optional int32 element; } } } }",
    "required float c",
    "optional binary c (DECIMAL(20, 2))",
];

/// Say once where a panic came from. A panic is an error for the caller, and does not end the process.
pub fn begin() {
    let known = Mutex::new(HashSet::new());
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string);
        if lock(&known).insert(place) {
            eprintln!("PANIC: {panic}");
        }
    }));
}

/// Read a file. Its rows are as many as its footer says, and do not depend on how it is read, or it is refused.
pub fn read_file(data: &[u8]) {
    let Ok(file) = OpenFile::open(Source::Memory(Bytes::copy_from_slice(data))) else {
        return;
    };
    // The input chooses, so that it fails again.
    let chance = data.iter().fold(0usize, |sum, byte| {
        sum.wrapping_mul(31) + usize::from(*byte)
    });
    let file = Arc::new(file);
    let groups = file.metadata.row_groups();
    let expected = groups
        .iter()
        .map(|group| group.num_rows() as usize)
        .fold(0, usize::saturating_add);
    let Ok((whole, rows)) = read(&file, 8192, 1 + chance % 2, None) else {
        return;
    };
    if rows != expected && rows < MANY_ROWS {
        fail("other rows than the footer says");
    }
    let Some(first) = whole.first().filter(|_| expected <= FEW_ROWS) else {
        return;
    };
    let whole = match concat_batches(first.schema_ref(), &whole) {
        Ok(whole) => whole,
        Err(error) => fail(&error.to_string()),
    };
    if let Ok((again, _)) = read(&file, 1 + chance % 61, 1, None)
        && concat_batches(first.schema_ref(), &again).ok() != Some(whole.clone())
    {
        fail(&format!(
            "rows depend on the size of batches: {:?} {:?}",
            whole.columns(),
            again
        ));
    }
    let selectors = runs(chance, expected);
    let wanted = selectors
        .iter()
        .flat_map(|run| std::iter::repeat_n(!run.skip, run.row_count))
        .collect::<BooleanArray>();
    if let Ok((some, _)) = read(&file, 100, 1, Some(selectors.into()))
        && concat_batches(first.schema_ref(), &some).ok()
            != filter_record_batch(&whole, &wanted).ok()
    {
        fail("a selection gives other rows");
    }
}

/// Read the pages of one column of a file, whose footer is made for them.
///
/// The input is: which column; its codec; rows; values if it is a list; pages.
pub fn read_column(data: &[u8]) {
    let Some(([column, codec, rows, values], pages)) = data.split_first_chunk::<4>() else {
        return;
    };
    let text = COLUMNS[usize::from(*column) % COLUMNS.len()];
    let codec = match codec % 7 {
        0 => Compression::SNAPPY,
        1 => Compression::GZIP(Default::default()),
        2 => Compression::ZSTD(Default::default()),
        3 => Compression::LZ4_RAW,
        4 => Compression::LZ4,
        5 => Compression::BROTLI(Default::default()),
        _ => Compression::UNCOMPRESSED,
    };
    let rows = i64::from(*rows);
    let values = if text.contains("LIST") {
        i64::from(*values) * 2
    } else {
        rows
    };
    let file = match file_of(text, codec, rows, values, pages) {
        Ok(file) => file,
        Err(error) => fail(&format!("a footer: {error}")),
    };
    read_file(&file);
}

/// A file of one column.
fn file_of(
    column: &str,
    codec: Compression,
    rows: i64,
    values: i64,
    pages: &[u8],
) -> parquet::errors::Result<Vec<u8>> {
    let schema = parse_message_type(&format!(
        "message m {{ {column}{} }}",
        if column.ends_with('}') { "" } else { ";" }
    ))?;
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
    let chunk = ColumnChunkMetaData::builder(schema.column(0))
        .set_encodings(vec![Encoding::PLAIN])
        .set_compression(codec)
        .set_num_values(values)
        .set_data_page_offset(4)
        .set_total_compressed_size(pages.len() as i64)
        .set_total_uncompressed_size(pages.len() as i64)
        .build()?;
    let group = RowGroupMetaData::builder(Arc::clone(&schema))
        .set_num_rows(rows)
        .add_column_metadata(chunk)
        .build()?;
    let footer = FileMetaData::new(2, rows, None, None, schema, None);
    let mut file = [b"PAR1", pages].concat();
    ParquetMetaDataWriter::new(&mut file, &ParquetMetaData::new(footer, vec![group])).finish()?;
    Ok(file)
}

/// Parse bytes as what is parsed before memory is taken.
pub fn parse(data: &[u8]) {
    if let Ok(Some((_, length))) = PageHeader::parse(data)
        && length > data.len()
    {
        fail("a header is longer than its bytes");
    }
    let _ = check_footer(data);
    if let Ok(lengths) = delta::lengths(data, 10_000)
        && (lengths.end > data.len() || lengths.count > 10_000 || lengths.largest > lengths.sum)
    {
        fail(&format!("{lengths:?}"));
    }
}

/// The first rows of a file, and how many it has.
fn read(
    file: &Arc<OpenFile>,
    rows: usize,
    threads: usize,
    selection: Option<Arc<[RowSelector]>>,
) -> Result<(Vec<RecordBatch>, usize)> {
    let schema = file.schema(&[])?;
    let names = schema.fields().iter().map(|field| field.name().clone());
    let groups = (0..file.metadata.num_row_groups()).map(|group| (Arc::clone(file), group));
    let mut batches = Batches::new(Request {
        groups: groups.collect(),
        names: &names.collect::<Vec<_>>(),
        dictionaries: &[],
        selection,
        rows,
        threads,
    })?;
    let (mut first, mut count) = (Vec::new(), 0);
    while let Some(batch) = batches.next()? {
        let schema = batches.schema();
        for (field, column) in schema.fields().iter().zip(batch.columns()) {
            let checked = typed(&column.to_data(), field.data_type());
            if let Err(error) = checked.and_then(|data| data.validate_full()) {
                fail(&error.to_string());
            }
        }
        count += batch.num_rows();
        if count <= FEW_ROWS || first.is_empty() {
            first.push(batch);
        }
        if count >= MANY_ROWS {
            break;
        }
    }
    Ok((first, count))
}

/// An array with the types that readers get: strings, and not binaries.
fn typed(data: &ArrayData, kind: &DataType) -> std::result::Result<ArrayData, ArrowError> {
    let children: Vec<_> = match kind {
        DataType::Struct(fields) => fields.iter().collect(),
        DataType::List(item) | DataType::Map(item, _) => vec![item],
        _ => return data.clone().into_builder().data_type(kind.clone()).build(),
    };
    let children = data.child_data().iter().zip(children);
    let children = children.map(|(child, field)| typed(child, field.data_type()));
    let children = children.collect::<std::result::Result<Vec<_>, _>>()?;
    let builder = data.clone().into_builder().data_type(kind.clone());
    builder.child_data(children).build()
}

/// Runs of rows, of which every second one is wanted.
fn runs(chance: usize, rows: usize) -> Vec<RowSelector> {
    let (mut runs, mut left) = (Vec::new(), rows);
    while left > 0 {
        let count = left.min(1 + (chance >> (runs.len() % 40)) % 37);
        runs.push(if runs.len() % 2 == 0 {
            RowSelector::skip(count)
        } else {
            RowSelector::select(count)
        });
        left -= count;
    }
    runs
}

fn fail(what: &str) -> ! {
    eprintln!("BROKEN: {what}");
    std::process::abort()
}

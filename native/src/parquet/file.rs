//! The footer of a file: its schema, and where its columns are.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use parquet::arrow::{ProjectionMask, parquet_to_arrow_schema_by_columns};
use parquet::basic::{Compression, ConvertedType, Repetition, Type};
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use parquet::schema::types::Type as SchemaType;

use super::failure::{Result, damaged, too_large};
use super::legacy::with_elements;
use super::source::Source;
use super::thrift::check_footer;

/// Bytes of a footer, at most.
const FOOTER_BYTES: usize = 32 << 20;
/// Bytes that are read from the end of a file to find its footer.
const TAIL_BYTES: usize = 64 << 10;
/// The footer's length and the magic number.
const ENDING_BYTES: usize = 8;

/// The levels of the innermost group that two leaves are in. Groups of fewer levels come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shared {
    pub definition: u8,
    pub repetition: u8,
}

/// A leaf column: numbers or strings, at any depth.
#[derive(Debug)]
pub struct Leaf {
    /// Names with dots.
    pub path: String,
    pub physical: Type,
    /// Bytes of a value of fixed length.
    pub length: usize,
    pub definition: i16,
    pub repetition: i16,
    /// By repetition level, the smallest definition level of a value that is not the first of its list.
    pub least: Vec<u8>,
    /// Of the groups that the leaf before it is in, too.
    pub shared: Shared,
    /// Whether it is text that the crate `parquet` does not check.
    pub is_json: bool,
}

impl Leaf {
    /// Whether a row can have several of its values.
    pub fn is_repeated(&self) -> bool {
        self.repetition > 0
    }

    /// Bytes of a value in Arrow; of a string, without its contents.
    pub fn width(&self) -> u64 {
        match self.physical {
            Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::BYTE_ARRAY => 16,
            Type::FIXED_LEN_BYTE_ARRAY => self.length.max(32) as u64,
        }
    }
}

/// Where a column of a row group is.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub start: u64,
    pub end: u64,
    pub values: u64,
    pub rows: u64,
    pub codec: Compression,
}

/// A file whose footer was read.
pub struct OpenFile {
    pub source: Source,
    pub metadata: Arc<ParquetMetaData>,
    pub leaves: Vec<Arc<Leaf>>,
    footer: Bytes,
}

impl OpenFile {
    /// Reads the footer.
    pub fn open(source: Source) -> Result<Self> {
        let footer = read_footer(&source)?;
        check_footer(&footer)?;
        let metadata = decode(&footer, ParquetStatisticsPolicy::SkipAll)?;
        let columns = metadata.file_metadata().schema_descr().columns();
        let mut shared = Vec::with_capacity(columns.len());
        share_levels(
            metadata.file_metadata().schema(),
            Shared::default(),
            &mut Shared::default(),
            &mut shared,
        );
        let leaves = columns.iter().zip(shared).map(|(column, shared)| {
            Arc::new(Leaf {
                path: column.path().string(),
                physical: column.physical_type(),
                length: usize::try_from(column.type_length()).unwrap_or(0),
                definition: column.max_def_level(),
                repetition: column.max_rep_level(),
                least: least_levels(metadata.file_metadata().schema(), column.path().parts()),
                shared,
                is_json: column.converted_type() == ConvertedType::JSON,
            })
        });
        let leaves = leaves.collect::<Vec<_>>();
        for group in metadata.row_groups() {
            if group.num_columns() != leaves.len() {
                return Err(damaged!(
                    "a row group has {} columns, and the file {}",
                    group.num_columns(),
                    leaves.len()
                ));
            }
            if group.num_rows() < 0 {
                return Err(damaged!("a row group has {} rows", group.num_rows()));
            }
        }
        Ok(Self {
            source,
            metadata: Arc::new(metadata),
            leaves,
            footer,
        })
    }

    /// Rows of a row group.
    pub fn rows(&self, group: usize) -> usize {
        self.metadata.row_group(group).num_rows() as usize
    }

    /// The footer with the statistics of these leaves.
    pub fn with_statistics(&self, leaves: &[usize]) -> Result<ParquetMetaData> {
        decode(&self.footer, ParquetStatisticsPolicy::skip_except(leaves))
    }

    /// The leaves of columns, which are top-level names or dotted names within them, in the order of the file.
    pub fn leaves_of(&self, names: &[String]) -> Vec<usize> {
        let is_in = |path: &str| {
            names.iter().any(|name| {
                path.strip_prefix(name.as_str())
                    .is_some_and(|after| after.is_empty() || after.starts_with('.'))
            })
        };
        self.leaves
            .iter()
            .enumerate()
            .filter(|(_, leaf)| is_in(&leaf.path))
            .map(|(number, _)| number)
            .collect()
    }

    /// Where a leaf of a row group is.
    pub fn chunk(&self, group: usize, leaf: usize) -> Result<Chunk> {
        let known = self.metadata.row_group(group).column(leaf);
        let path = &self.leaves[leaf].path;
        let size = known.compressed_size();
        // Some writers say 0 where there is no dictionary.
        let start = match known.dictionary_page_offset() {
            Some(dictionary) if 0 < dictionary && dictionary < known.data_page_offset() => {
                dictionary
            }
            _ => known.data_page_offset(),
        };
        let data_end = (self.source.size() as i64) - (self.footer.len() + ENDING_BYTES) as i64;
        let end = start
            .checked_add(size)
            .filter(|end| start >= 0 && size >= 0 && *end <= data_end);
        let end = end.ok_or_else(|| damaged!("column '{path:.200}' lies outside of the file"))?;
        let values = u64::try_from(known.num_values())
            .map_err(|_| damaged!("column '{path:.200}' has fewer than no values"))?;
        let rows = self.rows(group) as u64;
        if !self.leaves[leaf].is_repeated() && values != rows {
            return Err(damaged!(
                "column '{path:.200}' has {values} values in a row group of {rows} rows"
            ));
        }
        Ok(Chunk {
            start: start as u64,
            end: end as u64,
            values,
            rows,
            codec: known.compression(),
        })
    }

    /// All columns as they are decoded: views of strings, and microseconds of INT96. Those of `dictionaries` are dictionaries.
    pub fn fields(&self, dictionaries: &[String]) -> Result<Fields> {
        let schema = self.metadata.file_metadata().schema_descr();
        let plain = parquet_to_arrow_schema_by_columns(schema, ProjectionMask::all(), None)?;
        let mut physical = self.leaves.iter().map(|leaf| leaf.physical);
        let fields = plain
            .fields()
            .iter()
            .map(|field| decoded(field, &mut physical));
        let fields = fields.map(|field| match field.data_type() {
            DataType::Utf8View if dictionaries.contains(field.name()) => {
                let kind =
                    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
                Arc::new(Field::clone(&field).with_data_type(kind))
            }
            _ => field,
        });
        Ok(fields.collect())
    }

    /// The schema of all columns, as readers get it.
    pub fn schema(&self, dictionaries: &[String]) -> Result<SchemaRef> {
        Ok(Arc::new(Schema::new(super::strings::plain_fields(
            &self.fields(dictionaries)?,
        ))))
    }
}

fn decode(footer: &[u8], statistics: ParquetStatisticsPolicy) -> Result<ParquetMetaData> {
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(statistics)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
    with_elements(ParquetMetaDataReader::decode_metadata_with_options(
        footer,
        Some(&options),
    )?)
}

/// See `Leaf::least`.
fn least_levels(root: &SchemaType, path: &[String]) -> Vec<u8> {
    let (mut least, mut definition, mut group) = (vec![0], 0u8, root);
    for name in path {
        let children = if group.is_group() {
            group.get_fields()
        } else {
            &[]
        };
        let Some(child) = children.iter().find(|child| child.name() == name) else {
            break;
        };
        group = child;
        match child.get_basic_info().repetition() {
            Repetition::REQUIRED => {}
            Repetition::OPTIONAL => definition = definition.saturating_add(1),
            Repetition::REPEATED => {
                definition = definition.saturating_add(1);
                least.push(definition);
            }
        }
    }
    least
}

/// Appends `Leaf::shared` of each leaf of a group.
///
/// # Arguments
/// * `levels` - of the group
/// * `shared` - of the next leaf with the one before it
fn share_levels(group: &SchemaType, levels: Shared, shared: &mut Shared, leaves: &mut Vec<Shared>) {
    if !group.is_group() {
        leaves.push(*shared);
        return;
    }
    for child in group.get_fields() {
        let repetition = child.get_basic_info().repetition();
        let below = Shared {
            definition: levels.definition + u8::from(repetition != Repetition::REQUIRED),
            repetition: levels.repetition + u8::from(repetition == Repetition::REPEATED),
        };
        share_levels(child, below, shared, leaves);
        *shared = levels;
    }
}

fn read_footer(source: &Source) -> Result<Bytes> {
    let size = source.size();
    if size < (4 + ENDING_BYTES) as u64 {
        return Err(damaged!(
            "the file has {size} bytes, too few for a Parquet file"
        ));
    }
    let tail_bytes = size.min(TAIL_BYTES as u64) as usize;
    let tail = source.read(
        size - tail_bytes as u64,
        tail_bytes,
        tail_bytes,
        Bytes::new(),
    )?;
    let tail = tail.slice(..tail_bytes);
    let (before, ending) = tail.split_at(tail_bytes - ENDING_BYTES);
    match &ending[4..] {
        b"PAR1" => {}
        b"PARE" => return Err(damaged!("the footer is encrypted")),
        _ => return Err(damaged!("the file does not end as Parquet files do")),
    }
    let length = u32::from_le_bytes([ending[0], ending[1], ending[2], ending[3]]) as usize;
    if (length + ENDING_BYTES + 4) as u64 > size {
        return Err(damaged!(
            "the footer has {length} bytes, and the file {size}"
        ));
    }
    if length > FOOTER_BYTES {
        return Err(too_large!(
            "the footer has {length} bytes; at most {FOOTER_BYTES} are read"
        ));
    }
    if length <= before.len() {
        let start = before.len() - length;
        return Ok(tail.slice(start..start + length));
    }
    Ok(source
        .read(
            size - (length + ENDING_BYTES) as u64,
            length,
            length,
            Bytes::new(),
        )?
        .slice(..length))
}

/// A field as it is decoded. `physical` has the types of the leaves from its first one on.
fn decoded(field: &FieldRef, physical: &mut impl Iterator<Item = Type>) -> FieldRef {
    let mut inner = |field: &FieldRef| decoded(field, physical);
    let kind = match field.data_type() {
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::List(item) => DataType::List(inner(item)),
        DataType::LargeList(item) => DataType::LargeList(inner(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(inner(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        leaf => match (leaf, physical.next()) {
            (DataType::Utf8, _) => DataType::Utf8View,
            (DataType::Binary, _) => DataType::BinaryView,
            (DataType::Timestamp(_, zone), Some(Type::INT96)) => {
                DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            (other, _) => other.clone(),
        },
    };
    Arc::new(Field::clone(field).with_data_type(kind))
}

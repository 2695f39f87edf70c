//! Columns that are decoded together, in one thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::Fields;
use parquet::arrow::arrow_reader::{
    ParquetRecordBatchReader, RowGroups, RowSelection, RowSelector,
};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Type;
use parquet::column::page::PageIterator;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use super::charge::{Charge, ColumnCharge};
use super::checks::{check_values, is_checked, not_text};
use super::failure::{Failure, Result, damaged, too_large};
use super::file::OpenFile;
use super::pages::Chunks;
use super::siblings::{Sibling, Siblings};
use super::strings::plain_batch;

/// Bytes of a batch's values of fixed width, about, at most.
const BATCH_BYTES: u64 = 32 << 20;
/// Bytes of the values of fixed width of a row, at most.
const ROW_BYTES: u64 = 256 << 20;

/// A row group of a file.
pub type Group = (Arc<OpenFile>, usize);

/// Some columns of row groups that are read one after the other, of one file or of several of the same schema.
pub struct Columns {
    groups: Arc<[Group]>,
    levels: FieldLevels,
    charge: Arc<Charge>,
    /// Rows that are wanted, as runs; None for all.
    selection: Option<Arc<[RowSelector]>>,
    /// How many these are, and how many of them were read.
    total: usize,
    done: usize,
    /// Rows of a batch, at most.
    rows: usize,
    reader: Option<ParquetRecordBatchReader>,
    fields: Fields,
    /// Rows that were read and not returned yet: those in the form that is returned, and later ones as decoded.
    ready: Option<RecordBatch>,
    waiting: Option<RecordBatch>,
    /// Leaf columns, and all columns as they are decoded.
    leaves: Vec<usize>,
    hints: Fields,
    checked: bool,
}

impl Columns {
    /// # Arguments
    /// * `leaves` - numbers of the leaf columns
    /// * `hints` - all columns of the files, as they are decoded
    /// * `total` - rows of the selection
    /// * `rows` - of a batch, at most
    pub fn new(
        groups: Arc<[Group]>,
        leaves: &[usize],
        hints: &Fields,
        selection: Option<Arc<[RowSelector]>>,
        total: usize,
        rows: usize,
    ) -> Result<Self> {
        let file = &groups[0].0;
        let schema = file.metadata.file_metadata().schema_descr();
        let mask = ProjectionMask::leaves(schema, leaves.iter().copied());
        let levels = parquet_to_arrow_field_levels(schema, mask, Some(hints))?;
        let width = leaves
            .iter()
            .map(|leaf| file.leaves[*leaf].width())
            .fold(1, u64::saturating_add);
        if width > ROW_BYTES {
            return Err(too_large!(
                "a row has {width} bytes; at most {ROW_BYTES} are read"
            ));
        }
        // The footer's size of strings is a guess. It saves reading the first pages twice.
        let width = width.saturating_add(text_bytes(&groups, leaves));
        let rows = rows.clamp(1, usize::try_from(BATCH_BYTES / width).unwrap_or(1).max(1));
        let rows = (rows / values_of_row(&groups, leaves)).max(1);
        let charge = Arc::default();
        let reader = begin(
            &groups,
            leaves,
            &levels,
            &charge,
            remaining(selection.as_deref(), 0, total),
            rows,
        )?;
        let fields = reader.schema().fields().clone();
        let json = leaves.iter().any(|leaf| groups[0].0.leaves[*leaf].is_json);
        let checked = fields
            .iter()
            .any(|field| is_checked(field.data_type(), json));
        Ok(Self {
            groups,
            levels,
            charge,
            selection,
            total,
            done: 0,
            rows,
            reader: Some(reader),
            fields,
            ready: None,
            waiting: None,
            leaves: leaves.to_vec(),
            hints: hints.clone(),
            checked,
        })
    }

    /// The columns as they are decoded.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// How many rows `take` can return, after reading more if there are none; 0 at the end.
    pub fn fill(&mut self) -> Result<usize> {
        if self.ready.is_none() {
            let views = match self.waiting.take() {
                Some(views) => views,
                None => match self.read()? {
                    Some(views) => views,
                    None => return Ok(0),
                },
            };
            let (ready, waiting) = plain_batch(&views)?;
            (self.ready, self.waiting) = (Some(ready), waiting);
        }
        Ok(self.ready.as_ref().map_or(0, RecordBatch::num_rows))
    }

    /// The next `rows` rows, no more than `fill` has said.
    pub fn take(&mut self, rows: usize) -> Option<RecordBatch> {
        let ready = self.ready.take()?;
        if ready.num_rows() == rows {
            return Some(ready);
        }
        self.ready = Some(ready.slice(rows, ready.num_rows() - rows));
        Some(ready.slice(0, rows))
    }

    /// The error for the column whose text is not UTF-8: the first that cannot be read alone.
    fn name_text(&self) -> Option<Failure> {
        let schema = self.groups[0].0.metadata.file_metadata().schema_descr();
        let root = |leaf: &usize| schema.get_column_root_idx(*leaf);
        let columns = self
            .leaves
            .chunk_by(|one, other| root(one) == root(other))
            .collect::<Vec<_>>();
        if let [column] = columns[..] {
            return Some(not_text(schema.get_column_root(column[0]).name()));
        }
        columns.into_iter().find_map(|column| {
            let groups = Arc::clone(&self.groups);
            let alone = Self::new(
                groups,
                column,
                &self.hints,
                self.selection.clone(),
                self.total,
                self.rows,
            );
            let failure = alone.and_then(|mut alone| {
                while alone.read()?.is_some() {}
                Ok(())
            });
            failure
                .err()
                .filter(|failure| matches!(failure, Failure::NotText(_)))
        })
    }

    fn read(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            self.charge.begin(self.rows);
            let reader = match &mut self.reader {
                Some(reader) => reader,
                none => none.insert(begin(
                    &self.groups,
                    &self.leaves,
                    &self.levels,
                    &self.charge,
                    remaining(self.selection.as_deref(), self.done, self.total),
                    self.rows,
                )?),
            };
            let failure = match reader.next() {
                Some(Ok(batch)) if batch.num_rows() > 0 => {
                    self.done += batch.num_rows();
                    if self.done > self.total {
                        return Err(damaged!("more rows than the {} of the footer", self.total));
                    }
                    if self.checked {
                        check_values(&batch)?;
                    }
                    return Ok(Some(batch));
                }
                Some(Err(error)) => self.charge.take_failure().unwrap_or_else(|| error.into()),
                _ if self.done < self.total => {
                    damaged!("{} rows were read of {}", self.done, self.total)
                }
                _ => return Ok(None),
            };
            match failure {
                Failure::Damaged(what) if is_not_text(&what) => {
                    return Err(self.name_text().unwrap_or(Failure::Damaged(what)));
                }
                Failure::FewerRows if self.rows > 1 => self.rows = (self.rows / 4).max(1),
                failure => return Err(failure),
            }
            self.reader = None;
            self.charge = Arc::default();
        }
    }
}

/// Rows of row groups.
pub fn rows_of(groups: &[Group]) -> usize {
    groups.iter().map(|(file, group)| file.rows(*group)).sum()
}

/// The sum of a number that the footers have of a leaf in each row group. It is not trusted: it may be too large, and is 0 for less than that.
pub fn sum_of(groups: &[Group], leaf: usize, number: impl Fn(&ColumnChunkMetaData) -> i64) -> u64 {
    let numbers = groups
        .iter()
        .map(|(file, group)| number(file.metadata.row_group(*group).column(leaf)));
    numbers
        .map(|number| u64::try_from(number).unwrap_or(0))
        .fold(0, u64::saturating_add)
}

/// Bytes of a row's strings, about, as the footers say.
fn text_bytes(groups: &[Group], leaves: &[usize]) -> u64 {
    let texts = leaves
        .iter()
        .filter(|leaf| groups[0].0.leaves[**leaf].physical == Type::BYTE_ARRAY);
    let bytes = texts
        .map(|leaf| sum_of(groups, *leaf, ColumnChunkMetaData::uncompressed_size))
        .fold(0, u64::saturating_add);
    bytes / rows_of(groups).max(1) as u64
}

/// How many values a row has in the longest of its lists, about, as the footers say. The crate `parquet` copies what it has read of a batch with
/// each further page, so a batch has as many values as it has rows without lists.
fn values_of_row(groups: &[Group], leaves: &[usize]) -> usize {
    let values = leaves
        .iter()
        .map(|leaf| sum_of(groups, *leaf, ColumnChunkMetaData::num_values));
    let most = values.max().unwrap_or(0) / rows_of(groups).max(1) as u64;
    usize::try_from(most).unwrap_or(1).max(1)
}

/// Whether the crate `parquet` has found text that is not UTF-8. It does not say where.
fn is_not_text(what: &str) -> bool {
    what.contains("non UTF-8")
}

fn begin(
    groups: &Arc<[Group]>,
    leaves: &[usize],
    levels: &FieldLevels,
    charge: &Arc<Charge>,
    selection: Option<RowSelection>,
    rows: usize,
) -> Result<ParquetRecordBatchReader> {
    charge.begin(rows);
    let groups = Groups {
        groups: Arc::clone(groups),
        charge: Arc::clone(charge),
        siblings: Sibling::of(&groups[0].0.leaves, leaves),
    };
    Ok(ParquetRecordBatchReader::try_new_with_row_groups(
        levels, &groups, rows, selection,
    )?)
}

/// The rows of a selection without the first `done` of them.
fn remaining(selection: Option<&[RowSelector]>, done: usize, total: usize) -> Option<RowSelection> {
    let Some(selectors) = selection else {
        return (done > 0)
            .then(|| vec![RowSelector::skip(done), RowSelector::select(total - done)].into());
    };
    let mut passed = done;
    let left = selectors.iter().flat_map(|selector| {
        let again = if selector.skip {
            0
        } else {
            passed.min(selector.row_count)
        };
        passed -= again;
        let more = RowSelector {
            row_count: selector.row_count - again,
            skip: selector.skip,
        };
        [RowSelector::skip(again), more]
    });
    Some(left.collect::<Vec<_>>().into())
}

/// The row groups as the crate `parquet` wants them.
struct Groups {
    groups: Arc<[Group]>,
    charge: Arc<Charge>,
    siblings: HashMap<usize, Siblings>,
}

impl RowGroups for Groups {
    fn num_rows(&self) -> usize {
        rows_of(&self.groups)
    }

    fn column_chunks(&self, leaf: usize) -> ParquetResult<Box<dyn PageIterator>> {
        let chunks = self
            .groups
            .iter()
            .map(|(file, group)| Ok((Arc::clone(file), file.chunk(*group, leaf)?)));
        let chunks = chunks
            .collect::<Result<Vec<_>>>()
            .map_err(|failure| self.charge.keep(failure))?;
        Ok(Box::new(Chunks {
            chunks: chunks.into_iter(),
            leaf: Arc::clone(&self.groups[0].0.leaves[leaf]),
            charge: Arc::clone(&self.charge),
            column: Arc::new(Mutex::new(ColumnCharge::default())),
            siblings: self.siblings.get(&leaf).cloned().unwrap_or_default(),
        }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(
            self.groups
                .iter()
                .map(|(file, group)| file.metadata.row_group(*group)),
        )
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.groups[0].0.metadata
    }
}

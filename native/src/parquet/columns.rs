//! Columns that are decoded together, in one thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::Fields;
use parquet::arrow::arrow_reader::{
    ParquetRecordBatchReader, RowGroups, RowSelection, RowSelector,
};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::column::page::PageIterator;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::charge::{Charge, ColumnCharge};
use super::failure::{Failure, Result, damaged};
use super::file::OpenFile;
use super::pages::Chunks;
use super::strings::{plain_batches, plain_fields};

/// Bytes of a batch's values of fixed width, about, at most.
const BATCH_BYTES: u64 = 32 << 20;

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
    views: bool,
    /// What was read and not returned yet.
    ready: VecDeque<RecordBatch>,
}

impl Columns {
    /// # Arguments
    /// * `leaves` - numbers of the leaf columns
    /// * `fields` - all columns of the files, as they are decoded
    /// * `total` - rows of the selection
    /// * `rows` - of a batch, at most
    /// * `views` - whether strings remain views
    pub fn new(
        groups: Arc<[Group]>,
        leaves: &[usize],
        fields: &Fields,
        selection: Option<Arc<[RowSelector]>>,
        total: usize,
        rows: usize,
        views: bool,
    ) -> Result<Self> {
        let file = &groups[0].0;
        let schema = file.metadata.file_metadata().schema_descr();
        let mask = ProjectionMask::leaves(schema, leaves.iter().copied());
        let levels = parquet_to_arrow_field_levels(schema, mask, Some(fields))?;
        let width = leaves
            .iter()
            .map(|leaf| file.leaves[*leaf].width())
            .fold(1, u64::saturating_add);
        let rows = rows.clamp(1, usize::try_from(BATCH_BYTES / width).unwrap_or(1).max(1));
        let charge = Arc::default();
        let reader = begin(
            &groups,
            &levels,
            &charge,
            remaining(selection.as_deref(), 0, total),
            rows,
        )?;
        let fields = reader.schema().fields().clone();
        Ok(Self {
            groups,
            levels,
            charge,
            selection,
            total,
            done: 0,
            rows,
            reader: Some(reader),
            fields: if views { fields } else { plain_fields(&fields) },
            views,
            ready: VecDeque::new(),
        })
    }

    /// The columns of batches.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Rows that can be taken from `front`, after reading more if there are none; 0 at the end.
    pub fn fill(&mut self) -> Result<usize> {
        while self.ready.is_empty() {
            let Some(batch) = self.read()? else {
                return Ok(0);
            };
            if self.views {
                self.ready.push_back(batch);
            } else {
                plain_batches(&batch, &mut self.ready)?;
            }
        }
        Ok(self.ready[0].num_rows())
    }

    /// The next `rows` rows, no more than `fill` has said.
    pub fn take(&mut self, rows: usize) -> Option<RecordBatch> {
        let front = self.ready.pop_front()?;
        if front.num_rows() > rows {
            self.ready
                .push_front(front.slice(rows, front.num_rows() - rows));
            return Some(front.slice(0, rows));
        }
        Some(front)
    }

    fn read(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            self.charge.begin(self.rows);
            let reader = match &mut self.reader {
                Some(reader) => reader,
                none => none.insert(begin(
                    &self.groups,
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
                    return Ok(Some(batch));
                }
                Some(Err(error)) => self.charge.take_failure().unwrap_or_else(|| error.into()),
                _ if self.done < self.total => {
                    damaged!("{} rows were read of {}", self.done, self.total)
                }
                _ => return Ok(None),
            };
            match failure {
                Failure::FewerRows if self.rows > 1 => self.rows = (self.rows / 4).max(1),
                failure => return Err(failure),
            }
            self.reader = None;
            self.charge = Arc::default();
        }
    }
}

fn begin(
    groups: &Arc<[Group]>,
    levels: &FieldLevels,
    charge: &Arc<Charge>,
    selection: Option<RowSelection>,
    rows: usize,
) -> Result<ParquetRecordBatchReader> {
    charge.begin(rows);
    let groups = Groups {
        groups: Arc::clone(groups),
        charge: Arc::clone(charge),
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
}

impl RowGroups for Groups {
    fn num_rows(&self) -> usize {
        self.groups
            .iter()
            .map(|(file, group)| file.rows(*group))
            .sum()
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

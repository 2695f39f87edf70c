//! Batches of rows, from columns that are decoded in one thread or in several.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Fields, Schema, SchemaRef};
use parquet::arrow::arrow_reader::RowSelector;
use parquet::file::metadata::ColumnChunkMetaData;

use super::columns::{Columns, Group, rows_of, sum_of};
use super::failure::{Result, damaged};
use super::file::OpenFile;
use super::strings::{copied_fields, plain_fields};

/// Threads of this process that decode.
static DECODING: AtomicUsize = AtomicUsize::new(0);

/// A thread that decodes, for as long as this lives.
struct Decoding {
    /// Threads that decoded before.
    others: usize,
}

impl Decoding {
    fn begin() -> Self {
        let others = DECODING.fetch_add(1, Ordering::Relaxed);
        Self { others }
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        DECODING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Rows in order, of one file or of several.
pub struct Batches {
    columns: Vec<Columns>,
    /// For each column of a batch, the thread that decodes it, and its place there.
    places: Vec<(usize, usize)>,
    /// As readers get it, and as batches have it.
    schema: SchemaRef,
    copied: SchemaRef,
    /// Rows to return without columns, if no column is wanted.
    counted: usize,
    rows: usize,
    threads: usize,
}

/// A request to read rows.
pub struct Request<'a> {
    /// Of files of one schema.
    pub groups: Arc<[Group]>,
    pub names: &'a [String],
    pub dictionaries: &'a [String],
    pub selection: Option<Arc<[RowSelector]>>,
    pub rows: usize,
    pub threads: usize,
}

impl Batches {
    pub fn new(request: Request<'_>) -> Result<Self> {
        let Request {
            groups,
            names,
            dictionaries,
            selection,
            rows,
            threads,
        } = request;
        let total = selection.as_ref().map_or_else(
            || rows_of(&groups),
            |runs| {
                runs.iter()
                    .filter(|run| !run.skip)
                    .map(|run| run.row_count)
                    .sum()
            },
        );
        let empty = Self {
            columns: vec![],
            places: vec![],
            schema: Arc::new(Schema::empty()),
            copied: Arc::new(Schema::empty()),
            counted: total,
            rows,
            threads,
        };
        let Some((file, _)) = groups.first() else {
            return Ok(empty);
        };
        let leaves = file.leaves_of(names);
        if leaves.is_empty() {
            return Ok(empty);
        }
        check_lists(&groups, &leaves)?;
        let fields = file.fields(dictionaries)?;
        let mut columns = Vec::new();
        let mut places = BTreeMap::new();
        for (thread, some) in shared(&groups, &leaves, threads).iter().enumerate() {
            let some = some.concat();
            let tops = tops_of(file, &some);
            places.extend(
                tops.into_iter()
                    .enumerate()
                    .map(|(place, top)| (top, (thread, place))),
            );
            columns.push(Columns::new(
                Arc::clone(&groups),
                &some,
                &fields,
                selection.clone(),
                total,
                rows,
            )?);
        }
        let places = places.into_values().collect::<Vec<_>>();
        let fields = places
            .iter()
            .map(|(thread, place)| Arc::clone(&columns[*thread].fields()[*place]));
        let fields = fields.collect::<Fields>();
        Ok(Self {
            columns,
            places,
            schema: Arc::new(Schema::new(plain_fields(&fields))),
            copied: Arc::new(Schema::new(copied_fields(&fields))),
            counted: 0,
            rows,
            threads,
        })
    }

    /// The columns of batches. Their strings are binaries in memory.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The next rows; None at the end. A panic of a decoder is a damaged file.
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        catch_unwind(AssertUnwindSafe(|| self.read()))
            .unwrap_or_else(|reason| Err(damaged!("decoding failed: {}", text_of(reason.as_ref()))))
    }

    fn read(&mut self) -> Result<Option<RecordBatch>> {
        if self.columns.is_empty() {
            let rows = self.counted.min(self.rows);
            self.counted -= rows;
            return if rows == 0 {
                Ok(None)
            } else {
                self.batch(vec![], rows).map(Some)
            };
        }
        let counts = self.fill()?;
        let rows = counts.iter().copied().min().unwrap_or(0);
        if rows == 0 {
            // All of them have as many rows as the footer says, or had failed.
            return Ok(None);
        }
        let parts = self
            .columns
            .iter_mut()
            .map(|columns| columns.take(rows))
            .collect::<Option<Vec<_>>>();
        let parts = parts.ok_or_else(|| damaged!("columns of different lengths"))?;
        let columns = self
            .places
            .iter()
            .map(|(thread, place)| Arc::clone(parts[*thread].column(*place)))
            .collect();
        self.batch(columns, rows).map(Some)
    }

    /// How many rows each of the columns has ready. Files side by side take less time than columns side by side, so these wait until the
    /// readers of other files leave cores idle.
    fn fill(&mut self) -> Result<Vec<usize>> {
        let here = Decoding::begin();
        if here.others + self.columns.len() > self.threads {
            return self.columns.iter_mut().map(Columns::fill).collect();
        }
        let (first, others) = self.columns.split_at_mut(1);
        std::thread::scope(|scope| {
            let others = others.iter_mut().map(|columns| {
                let there = Decoding::begin();
                scope.spawn(|| {
                    let _there = there;
                    columns.fill()
                })
            });
            let others = others.collect::<Vec<_>>();
            let mut counts = vec![first[0].fill()];
            counts.extend(others.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|reason| {
                    Err(damaged!("decoding failed: {}", text_of(reason.as_ref())))
                })
            }));
            counts.into_iter().collect()
        })
    }

    fn batch(&self, columns: Vec<arrow_array::ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.copied),
            columns,
            &options,
        )?)
    }
}

/// Files are read one after the other if no row has several values: those of one file cannot count for another.
fn check_lists(groups: &[Group], leaves: &[usize]) -> Result<()> {
    let first = &groups[0].0;
    let several = groups.iter().any(|(file, _)| !Arc::ptr_eq(file, first));
    if several && leaves.iter().any(|leaf| first.leaves[*leaf].is_repeated()) {
        return Err(damaged!("files with lists are not read together"));
    }
    Ok(())
}

/// The top-level columns of leaves, by number.
fn tops_of(file: &OpenFile, leaves: &[usize]) -> Vec<usize> {
    let schema = file.metadata.file_metadata().schema_descr();
    let mut tops = leaves
        .iter()
        .map(|leaf| schema.get_column_root_idx(*leaf))
        .collect::<Vec<_>>();
    tops.dedup();
    tops
}

/// The leaves of top-level columns, shared out among threads by their stored bytes.
fn shared(groups: &[Group], leaves: &[usize], threads: usize) -> Vec<Vec<Vec<usize>>> {
    let schema = groups[0].0.metadata.file_metadata().schema_descr();
    let mut columns = BTreeMap::<usize, (u64, Vec<usize>)>::new();
    for leaf in leaves {
        let (size, some) = columns
            .entry(schema.get_column_root_idx(*leaf))
            .or_default();
        *size = size.saturating_add(sum_of(groups, *leaf, ColumnChunkMetaData::compressed_size));
        some.push(*leaf);
    }
    let mut columns = columns.into_values().collect::<Vec<_>>();
    columns.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    let mut shares = vec![(0u64, Vec::new()); threads.clamp(1, columns.len())];
    for (size, some) in columns {
        if let Some((sum, share)) = shares.iter_mut().min_by_key(|(sum, _)| *sum) {
            *sum = sum.saturating_add(size.max(1));
            share.push(some);
        }
    }
    for (_, share) in &mut shares {
        share.sort();
    }
    shares.into_iter().map(|(_, share)| share).collect()
}

/// The message of a panic.
fn text_of(reason: &(dyn std::any::Any + Send)) -> String {
    let text = reason.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| reason.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic".to_owned())
}

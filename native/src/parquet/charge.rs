//! Memory of open pages, and of the batch that is made of them.
//!
//! Pages are decoded whole, however few rows a batch has. So they are bounded together, and a file whose pages are larger cannot be read. The
//! further memory of a batch depends on its rows: if that is too much, the batch is read again with fewer rows.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failure::{Failure, Result, too_large};
use super::spares::Spares;

/// Bytes of the open pages and dictionaries of all columns, and of one row, at most.
pub const OPEN_BYTES: u64 = 512 << 20;
/// Bytes of a batch besides its open pages, at most, unless it has one row.
const BATCH_BYTES: u64 = 64 << 20;
/// Bytes of each column that do not count: most writers make pages and dictionaries of 1 MiB.
const USUAL_BYTES: u64 = 8 << 20;

/// The memory of the columns that are read together.
#[derive(Default)]
pub struct Charge {
    rows: AtomicUsize,
    batch: AtomicUsize,
    used: AtomicU64,
    open: AtomicU64,
    failure: Mutex<Option<Failure>>,
    pub spares: Spares,
}

impl Charge {
    /// A batch of so many rows begins.
    pub fn begin(&self, rows: usize) {
        self.rows.store(rows, Ordering::Relaxed);
        self.batch.fetch_add(1, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
    }

    /// Rows of the batch.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed) as u64
    }

    /// Why a page was not read: the crate `parquet` returns its text only.
    pub fn take_failure(&self) -> Option<Failure> {
        lock(&self.failure).take()
    }

    /// Keep why a page was not read.
    pub fn keep(&self, failure: Failure) -> parquet::errors::ParquetError {
        let text = failure.to_string();
        lock(&self.failure).get_or_insert(failure);
        parquet::errors::ParquetError::General(text)
    }

    fn use_more(&self, bytes: u64) -> Result<()> {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match self.rows() {
            0 | 1 if used > OPEN_BYTES => Err(too_large!(
                "a row of its lists or maps takes too many bytes; at most {OPEN_BYTES} are read"
            )),
            0 | 1 => Ok(()),
            _ if used > BATCH_BYTES => Err(Failure::FewerRows),
            _ => Ok(()),
        }
    }

    fn open_more(&self, before: u64, after: u64) -> Result<()> {
        let open = self
            .open
            .fetch_add(after.wrapping_sub(before), Ordering::Relaxed)
            .wrapping_add(after.wrapping_sub(before));
        if open > OPEN_BYTES {
            return Err(too_large!(
                "the largest pages and dictionaries have {open} bytes together; at most {OPEN_BYTES} are read"
            ));
        }
        Ok(())
    }
}

/// Of one column, all of whose chunks share it.
#[derive(Default)]
pub struct ColumnCharge {
    dictionary: u64,
    page: u64,
    batch: usize,
    pages: usize,
    used: u64,
}

impl ColumnCharge {
    /// A dictionary of so many bytes is open, and the one before it no longer.
    pub fn open_dictionary(&mut self, charge: &Charge, bytes: u64) -> Result<()> {
        let before = self.open();
        (self.dictionary, self.page) = (bytes, 0);
        charge.open_more(before, self.open())
    }

    /// A data page is open, and the one before it no longer.
    ///
    /// # Arguments
    /// * `stored` - bytes of the page that values refer to
    /// * `decoded` - bytes of values that are made of it
    pub fn open_page(
        &mut self,
        charge: &Charge,
        size: u64,
        stored: u64,
        decoded: u64,
    ) -> Result<()> {
        let before = self.open();
        self.page = size;
        charge.open_more(before, self.open())?;
        let batch = charge.batch.load(Ordering::Relaxed);
        if batch != self.batch {
            (self.batch, self.pages, self.used) = (batch, 0, 0);
        }
        self.pages += 1;
        let used = self.used;
        // A batch of any rows has the first of its pages.
        self.used = used
            .saturating_add(decoded)
            .saturating_add(if self.pages > 1 { stored } else { 0 });
        let more = self.used.saturating_sub(used.max(USUAL_BYTES));
        if more > 0 {
            charge.use_more(more)
        } else {
            Ok(())
        }
    }

    fn open(&self) -> u64 {
        (self.dictionary + self.page).saturating_sub(USUAL_BYTES)
    }
}

/// A lock is never held while anything can fail.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The pages of a column chunk. Each header is checked before memory is taken for its page, and what was read against the footer.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::Result as ParquetResult;

use super::charge::{Charge, ColumnCharge, OPEN_BYTES, lock};
use super::codecs::Decompressor;
use super::delta;
use super::failure::{Failure, Result, damaged, too_large};
use super::file::{Chunk, Leaf, OpenFile};
use super::source::Window;
use super::thrift::{Kind, PageHeader};

/// Bytes of a page's header, at most; its statistics contain values of the column.
const HEADER_BYTES: usize = 1 << 20;

/// The chunks of a column, one after the other, of one file or of several.
pub struct Chunks {
    pub chunks: std::vec::IntoIter<(Arc<OpenFile>, Chunk)>,
    pub leaf: Arc<Leaf>,
    pub charge: Arc<Charge>,
    pub column: Arc<Mutex<ColumnCharge>>,
}

impl Iterator for Chunks {
    type Item = ParquetResult<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (file, chunk) = self.chunks.next()?;
        Some(Ok(Box::new(Pages {
            file,
            leaf: Arc::clone(&self.leaf),
            charge: Arc::clone(&self.charge),
            column: Arc::clone(&self.column),
            window: Window::new(chunk.start, chunk.end),
            decompressor: Decompressor::new(chunk.codec),
            header: None,
            has_dictionary: false,
            values_left: chunk.values,
            rows: Some(0),
            expected_rows: chunk.rows,
        })))
    }
}

impl PageIterator for Chunks {}

/// The pages of one chunk.
struct Pages {
    file: Arc<OpenFile>,
    leaf: Arc<Leaf>,
    charge: Arc<Charge>,
    column: Arc<Mutex<ColumnCharge>>,
    window: Window,
    decompressor: Decompressor,
    header: Option<PageHeader>,
    has_dictionary: bool,
    values_left: u64,
    /// Rows of pages that say how many they have; None once one did not.
    rows: Option<u64>,
    expected_rows: u64,
}

impl Pages {
    /// The header of the next page with values; None after the last value.
    fn next_header(&mut self) -> Result<Option<PageHeader>> {
        if let Some(header) = self.header.take() {
            return Ok(Some(header));
        }
        loop {
            if self.values_left == 0 {
                return match self.rows {
                    Some(rows) if self.leaf.is_repeated() && rows != self.expected_rows => {
                        Err(self.damaged(format!(
                            "{rows} rows in a row group that has {}",
                            self.expected_rows
                        )))
                    }
                    _ => Ok(None),
                };
            }
            let header = self.parse_header()?;
            if header.stored > self.window.left() {
                return Err(self.damaged("a page that ends after its column".into()));
            }
            if header.kind == Kind::Index {
                self.window.skip(header.stored);
                continue;
            }
            self.check(&header)?;
            if header.kind == Kind::Dictionary {
                self.has_dictionary = true;
            } else {
                self.values_left -= u64::from(header.values);
                self.rows = match (self.rows, header.kind) {
                    (Some(rows), Kind::DataV2) => Some(rows + u64::from(header.rows)),
                    _ => None,
                };
            }
            return Ok(Some(header));
        }
    }

    fn parse_header(&mut self) -> Result<PageHeader> {
        let left = self.window.left();
        for size in [128, 4096, HEADER_BYTES] {
            if let Some((header, length)) =
                PageHeader::parse(self.window.peek(&self.file.source, size.min(left))?)?
            {
                self.window.skip(length);
                return Ok(header);
            }
            if size >= left {
                return Err(self.damaged(format!(
                    "{} values fewer than the footer says",
                    self.values_left
                )));
            }
        }
        Err(self.damaged("a page header that does not end".into()))
    }

    /// Compare a header with the footer, and with what can be in so many bytes.
    fn check(&self, header: &PageHeader) -> Result<()> {
        if header.size as u64 > OPEN_BYTES {
            return Err(too_large!(
                "column '{:.200}' has a page of {} bytes; at most {OPEN_BYTES} are read",
                self.leaf.path,
                header.size
            ));
        }
        if header.kind == Kind::Dictionary {
            let least = match self.leaf.physical {
                Type::BYTE_ARRAY | Type::INT32 | Type::FLOAT => 4,
                Type::INT64 | Type::DOUBLE => 8,
                Type::INT96 => 12,
                Type::FIXED_LEN_BYTE_ARRAY => self.leaf.length.max(1),
                Type::BOOLEAN => return Err(self.damaged("a dictionary of booleans".into())),
            };
            if u64::from(header.values) * least as u64 > header.size as u64 {
                return Err(self.damaged(format!(
                    "a dictionary of {} values in {} bytes",
                    header.values, header.size
                )));
            }
            if self.has_dictionary {
                return Err(self.damaged("two dictionaries".into()));
            }
            return Ok(());
        }
        if u64::from(header.values) > self.values_left {
            return Err(self.damaged("more values than the footer says".into()));
        }
        let levels = u64::from(header.definition_bytes) + u64::from(header.repetition_bytes);
        if header.kind == Kind::DataV2
            && (levels > header.size as u64 || levels > header.stored as u64)
        {
            return Err(self.damaged("a page with more levels than bytes".into()));
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Page>> {
        let Some(header) = self.next_header()? else {
            return Ok(None);
        };
        let stored = self.window.take(&self.file.source, header.stored)?;
        let buf = self.decompress(&header, stored)?;
        if header.kind == Kind::Dictionary {
            lock(&self.column).open_dictionary(&self.charge, header.size as u64)?;
            return Ok(Some(Page::DictionaryPage {
                buf,
                num_values: header.values,
                encoding: header.encoding,
                is_sorted: false,
            }));
        }
        let (stored, decoded) = self.bytes_of(&header, &buf)?;
        lock(&self.column).open_page(&self.charge, header.size as u64, stored, decoded)?;
        Ok(Some(if header.kind == Kind::Data {
            Page::DataPage {
                buf,
                num_values: header.values,
                encoding: header.encoding,
                def_level_encoding: header.definition_encoding,
                rep_level_encoding: header.repetition_encoding,
                statistics: None,
            }
        } else {
            Page::DataPageV2 {
                buf,
                num_values: header.values,
                encoding: header.encoding,
                num_nulls: header.nulls,
                num_rows: header.rows,
                def_levels_byte_len: header.definition_bytes,
                rep_levels_byte_len: header.repetition_bytes,
                is_compressed: header.compressed,
                statistics: None,
            }
        }))
    }

    fn decompress(&mut self, header: &PageHeader, stored: Bytes) -> Result<Bytes> {
        let plain = (header.definition_bytes + header.repetition_bytes) as usize;
        if self.decompressor.is_plain() || (header.kind == Kind::DataV2 && !header.compressed) {
            if stored.len() != header.size {
                return Err(self.damaged(format!(
                    "a page of {} bytes, and its header says {}",
                    stored.len(),
                    header.size
                )));
            }
            return Ok(stored);
        }
        // It is not touched before it is written.
        let mut page = Vec::with_capacity(header.size);
        page.extend_from_slice(&stored[..plain]);
        // A page of nulls may have no bytes at all, and no codec's empty stream either.
        if header.size > plain {
            self.decompressor
                .append(&stored[plain..], header.size - plain, &mut page)
                .map_err(|failure| match failure {
                    Failure::Damaged(what) => self.damaged(what),
                    other => other,
                })?;
        }
        Ok(page.into())
    }

    /// Bytes of a data page that its values refer to, and bytes that are made of it, as far as both depend on more than a batch's rows.
    fn bytes_of(&self, header: &PageHeader, page: &Bytes) -> Result<(u64, u64)> {
        let values = u64::from(header.values);
        let levels = if self.leaf.is_repeated() {
            values * (self.leaf.width() + 4)
        } else {
            0
        };
        Ok(match header.encoding {
            Encoding::PLAIN if self.leaf.physical == Type::BYTE_ARRAY => {
                (page.len() as u64, levels)
            }
            Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                let lengths =
                    delta::lengths(self.values_of(header, page)?, header.values as usize)?;
                (page.len() as u64, levels + 4 * lengths.count as u64)
            }
            Encoding::DELTA_BYTE_ARRAY => {
                let data = self.values_of(header, page)?;
                let prefixes = delta::lengths(data, header.values as usize)?;
                let suffixes = delta::lengths(
                    data.get(prefixes.end..).unwrap_or_default(),
                    header.values as usize,
                )?;
                let (all, longest) = (
                    prefixes.sum + suffixes.sum,
                    prefixes.largest + suffixes.largest,
                );
                let text = if self.leaf.is_repeated() {
                    all
                } else {
                    all.min(self.charge.rows().saturating_mul(longest))
                };
                (0, levels + text + 8 * prefixes.count as u64)
            }
            _ => (0, levels),
        })
    }

    /// The values of a page, after its levels.
    fn values_of<'a>(&self, header: &PageHeader, page: &'a [u8]) -> Result<&'a [u8]> {
        let mut at = (header.definition_bytes + header.repetition_bytes) as usize;
        if header.kind == Kind::Data {
            for (most, encoding) in [
                (self.leaf.repetition, header.repetition_encoding),
                (self.leaf.definition, header.definition_encoding),
            ] {
                if most > 0 {
                    at += levels_bytes(
                        page.get(at..).unwrap_or_default(),
                        most,
                        encoding,
                        header.values,
                    );
                }
            }
        }
        page.get(at..)
            .ok_or_else(|| self.damaged("a page that ends before its values".into()))
    }

    fn damaged(&self, what: String) -> Failure {
        damaged!("column '{:.200}' has {what}", self.leaf.path)
    }
}

/// Bytes of the levels at the beginning of a data page of version 1.
fn levels_bytes(page: &[u8], most: i16, encoding: Encoding, values: u32) -> usize {
    if encoding == Encoding::RLE {
        let length = page
            .first_chunk::<4>()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes));
        return 4 + length as usize;
    }
    let bits = u64::from(16 - (most as u16).leading_zeros());
    (u64::from(values) * bits).div_ceil(8) as usize
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        self.read().map_err(|failure| self.charge.keep(failure))
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        let header = self
            .next_header()
            .map_err(|failure| self.charge.keep(failure))?;
        let metadata = header.as_ref().map(|header| PageMetadata {
            num_rows: (header.kind == Kind::DataV2).then_some(header.rows as usize),
            num_levels: (header.kind != Kind::Dictionary).then_some(header.values as usize),
            is_dict: header.kind == Kind::Dictionary,
        });
        self.header = header;
        Ok(metadata)
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        if let Some(header) = self
            .next_header()
            .map_err(|failure| self.charge.keep(failure))?
        {
            self.window.skip(header.stored);
        }
        Ok(())
    }
}

//! The pages of a column chunk. Each header is checked before memory is taken for its page, and what was read against the footer.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};

use super::charge::{Charge, ColumnCharge, OPEN_BYTES, lock};
use super::codecs::Decompressor;
use super::delta;
use super::failure::{Failure, Result, damaged, too_large};
use super::file::{Chunk, Leaf, OpenFile};
use super::levels::{Beginnings, Levels, check_lists};
use super::siblings::Siblings;
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
    pub siblings: Siblings,
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
            siblings: self.siblings.clone(),
            window: Window::new(chunk.start, chunk.end),
            decompressor: Decompressor::new(chunk.codec),
            header: None,
            has_dictionary: false,
            values_left: chunk.values,
            rows: 0,
            last: 0,
            levels: Default::default(),
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
    siblings: Siblings,
    window: Window,
    decompressor: Decompressor,
    header: Option<PageHeader>,
    has_dictionary: bool,
    values_left: u64,
    /// Rows of lists or maps that have begun. Their pages are never skipped.
    rows: u64,
    /// The definition level of the last value of a list.
    last: u8,
    /// Of the page, to be used again: repetition and definition levels.
    levels: [Vec<u8>; 2],
    expected_rows: u64,
}

/// A data page.
struct Sections<'a> {
    repetition: Option<Levels<'a>>,
    definition: Option<Levels<'a>>,
    values: &'a [u8],
}

impl Pages {
    /// The header of the next page with values; None after the last value.
    fn next_header(&mut self) -> Result<Option<PageHeader>> {
        if let Some(header) = self.header.take() {
            return Ok(Some(header));
        }
        loop {
            if self.values_left == 0 {
                // Or rows of one row group would count for another.
                if self.leaf.is_repeated() && self.rows != self.expected_rows {
                    return Err(damaged!(
                        "{} rows in a row group that has {}",
                        self.rows,
                        self.expected_rows
                    ));
                }
                return Ok(None);
            }
            let header = self.parse_header()?;
            if header.stored > self.window.left() {
                return Err(damaged!("a page that ends after its column"));
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
                return Err(damaged!(
                    "{} values fewer than the footer says",
                    self.values_left
                ));
            }
        }
        Err(damaged!("a page header that does not end"))
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
                Type::BOOLEAN => return Err(damaged!("a dictionary of booleans")),
            };
            if u64::from(header.values) * least as u64 > header.size as u64 {
                return Err(damaged!(
                    "a dictionary of {} values in {} bytes",
                    header.values,
                    header.size
                ));
            }
            if self.has_dictionary {
                return Err(damaged!("two dictionaries"));
            }
            return Ok(());
        }
        if u64::from(header.values) > self.values_left {
            return Err(damaged!("more values than the footer says"));
        }
        let levels = u64::from(header.definition_bytes) + u64::from(header.repetition_bytes);
        if header.kind == Kind::DataV2
            && (levels > header.size as u64 || levels > header.stored as u64)
        {
            return Err(damaged!("a page with more levels than bytes"));
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
        let sections = self.sections(&header, &buf)?;
        let (stored, decoded) = self.bytes_of(&header, buf.len(), &sections)?;
        lock(&self.column).open_page(&self.charge, header.size as u64, stored, decoded)?;
        self.check_levels(sections)?;
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
                return Err(damaged!(
                    "a page of {} bytes, and its header says {}",
                    stored.len(),
                    header.size
                ));
            }
            return Ok(stored);
        }
        self.decompressor
            .page(&stored, plain, header.size, &self.charge.spares)
    }

    /// Bytes of a data page that its values refer to, and bytes that are made of it, as far as both depend on more than a batch's rows.
    fn bytes_of(
        &self,
        header: &PageHeader,
        size: usize,
        sections: &Sections<'_>,
    ) -> Result<(u64, u64)> {
        let (values, data) = (u64::from(header.values), sections.values);
        let levels = if self.leaf.is_repeated() {
            values * (self.leaf.width() + 6)
        } else if self.siblings.is_empty() {
            0
        } else {
            // Levels wait for the columns beside it, in two bytes each. A byte of the page has eight at most, and a run takes no more.
            16 * sections.definition.map_or(0, |levels| levels.size() as u64)
        };
        Ok(match header.encoding {
            Encoding::PLAIN if self.leaf.physical == Type::BYTE_ARRAY => (size as u64, levels),
            Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                let lengths = delta::lengths(data, header.values as usize)?;
                (size as u64, levels + 4 * lengths.count as u64)
            }
            Encoding::DELTA_BYTE_ARRAY => {
                let prefixes = delta::lengths(data, header.values as usize)?;
                let others = data.get(prefixes.end..).unwrap_or_default();
                let suffixes = delta::lengths(others, header.values as usize)?;
                delta::check_prefixes(data, others, header.values as usize)?;
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

    /// The parts of a page.
    fn sections<'a>(&self, header: &PageHeader, page: &'a [u8]) -> Result<Sections<'a>> {
        let (count, is_v2) = (header.values, header.kind == Kind::DataV2);
        let mut data = page;
        let mut next = |most, encoding, bytes: u32| {
            let levels;
            if is_v2 {
                // `check` has compared their sizes with the page's.
                let (stored, others) = data.split_at(bytes as usize);
                (levels, data) = (Levels::new(stored, most, Encoding::RLE, count), others);
            } else if most > 0 {
                (levels, data) = Levels::split(data, most, encoding, count)?;
            } else {
                return Ok(None);
            }
            Ok::<_, Failure>(Some(levels).filter(|_| most > 0))
        };
        let repetition = next(
            self.leaf.repetition,
            header.repetition_encoding,
            header.repetition_bytes,
        )?;
        let definition = next(
            self.leaf.definition,
            header.definition_encoding,
            header.definition_bytes,
        )?;
        Ok(Sections {
            repetition,
            definition,
            values: data,
        })
    }

    /// Check the levels of a page, compare them with those of columns beside this one, and count the rows of a list.
    fn check_levels(&mut self, sections: Sections<'_>) -> Result<()> {
        let (repetition, definition) = match sections {
            Sections {
                repetition: Some(repetition),
                definition: Some(definition),
                ..
            } => (repetition, definition),
            Sections { definition, .. } => {
                let Some(definition) = definition else {
                    return Ok(());
                };
                if self.siblings.is_empty() {
                    return definition.check();
                }
                self.siblings.compare_rows(definition)?;
                return self.end_group();
            }
        };
        let [repetitions, definitions] = &mut self.levels;
        repetition.unpack(repetitions)?;
        definition.unpack(definitions)?;
        let Beginnings { count, first } =
            check_lists(repetitions, definitions, &self.leaf.least, self.last)?;
        if self.rows == 0 && !repetitions.is_empty() && !first {
            return Err(damaged!("a row group that begins within a row"));
        }
        self.rows += count;
        self.last = definitions.last().copied().unwrap_or(self.last);
        self.siblings.compare_lists(repetitions, definitions)?;
        self.end_group()
    }

    /// After a page: whether the columns beside this one end there, too, if it does.
    fn end_group(&self) -> Result<()> {
        if self.values_left == 0 {
            self.siblings.end()?;
        }
        Ok(())
    }

    /// Skip a page with values, no row of which is wanted.
    fn skip(&mut self) -> Result<()> {
        let Some(header) = self.next_header()? else {
            return Ok(());
        };
        self.window.skip(header.stored);
        self.siblings.skip_rows(header.values as usize)?;
        self.end_group()
    }

    /// The error of the crate `parquet` for a failure, which is kept with the column's name.
    fn failed(&self, failure: Failure) -> ParquetError {
        self.charge.keep(match failure {
            Failure::Damaged(what) => damaged!("column '{:.200}': {what}", self.leaf.path),
            other => other,
        })
    }
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        self.read().map_err(|failure| self.failed(failure))
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        let header = self.next_header().map_err(|failure| self.failed(failure))?;
        let metadata = header.as_ref().map(|header| PageMetadata {
            // A header's number of rows is not trusted, so pages of lists are decoded even if they are skipped.
            num_rows: None,
            num_levels: (header.kind != Kind::Dictionary).then_some(header.values as usize),
            is_dict: header.kind == Kind::Dictionary,
        });
        self.header = header;
        Ok(metadata)
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.skip().map_err(|failure| self.failed(failure))
    }
}

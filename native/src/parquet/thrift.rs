//! Thrift's compact protocol, as far as it must be read before anything believes it: page headers, and the sizes in a footer.
//!
//! Source: <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md> and `parquet.thrift` of apache/parquet-format.

use parquet::basic::Encoding;

use super::failure::{Failure, Result, damaged, too_large};
use super::varint::{NoNumber, from_zigzag, varint};

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Structs within structs, at most.
const DEPTH: usize = 32;
/// Items of a list of structs in a footer, at most: columns, row groups, or elements of the schema.
const FOOTER_ITEMS: usize = 200_000;
/// Groups within groups of a schema, at most: the crate `parquet` walks it by recursion.
const SCHEMA_DEPTH: usize = 100;

/// The kinds of pages that have values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Data,
    Index,
    Dictionary,
    DataV2,
}

/// A page's header. Sizes are in bytes and never negative.
#[derive(Clone, Debug)]
pub struct PageHeader {
    pub kind: Kind,
    /// Bytes of the page once decompressed.
    pub size: usize,
    /// Bytes of the page in the file, after the header.
    pub stored: usize,
    /// Values, nulls and empty lists among them.
    pub values: u32,
    pub encoding: Encoding,
    pub definition_encoding: Encoding,
    pub repetition_encoding: Encoding,
    /// The rest is of data pages of version 2 only.
    pub nulls: u32,
    pub rows: u32,
    pub definition_bytes: u32,
    pub repetition_bytes: u32,
    pub compressed: bool,
}

/// Bytes that end too early are `None`: the caller may have more of them.
struct Compact<'a> {
    data: &'a [u8],
}

type Parsed<T> = std::result::Result<T, Stop>;

/// Why parsing stopped.
enum Stop {
    /// The bytes end.
    End,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<'a> Compact<'a> {
    fn byte(&mut self) -> Parsed<u8> {
        let (first, others) = self.data.split_first().ok_or(Stop::End)?;
        self.data = others;
        Ok(*first)
    }

    fn varint(&mut self) -> Parsed<u64> {
        varint(&mut self.data).map_err(|why| match why {
            NoNumber::End => Stop::End,
            NoNumber::TooLong => damaged!("a number of more than 64 bits").into(),
        })
    }

    fn integer(&mut self) -> Parsed<i64> {
        Ok(from_zigzag(self.varint()?))
    }

    /// An integer that is a size or a number of things.
    fn count(&mut self) -> Parsed<u32> {
        let value = self.integer()?;
        u32::try_from(value)
            .ok()
            .filter(|count| *count <= i32::MAX as u32)
            .ok_or_else(|| damaged!("{value} where a size or a number is expected").into())
    }

    fn encoding(&mut self) -> Parsed<Encoding> {
        let number = self.count()?;
        Ok(match number {
            0 => Encoding::PLAIN,
            2 => Encoding::PLAIN_DICTIONARY,
            3 => Encoding::RLE,
            #[allow(deprecated)]
            4 => Encoding::BIT_PACKED,
            5 => Encoding::DELTA_BINARY_PACKED,
            6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            7 => Encoding::DELTA_BYTE_ARRAY,
            8 => Encoding::RLE_DICTIONARY,
            9 => Encoding::BYTE_STREAM_SPLIT,
            _ => return Err(damaged!("the unknown encoding {number}").into()),
        })
    }

    /// The next field of a struct: its id and type; None at the end.
    fn field(&mut self, id: &mut i64) -> Parsed<Option<u8>> {
        let byte = self.byte()?;
        let kind = byte & 15;
        if byte == 0 {
            return Ok(None);
        }
        *id = match byte >> 4 {
            0 => self.integer()?,
            delta => *id + i64::from(delta),
        };
        Ok(Some(kind))
    }

    fn take(&mut self, count: u64) -> Parsed<&'a [u8]> {
        let count = usize::try_from(count).map_err(|_| Stop::End)?;
        let (taken, others) = self.data.split_at_checked(count).ok_or(Stop::End)?;
        self.data = others;
        Ok(taken)
    }

    /// The number and type of a list's items. Each has at least one byte.
    fn list(&mut self) -> Parsed<(usize, u8)> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => self.varint()?,
            few => u64::from(few),
        };
        let count = usize::try_from(count).map_err(|_| Stop::End)?;
        if count > self.data.len() {
            return Err(Stop::End);
        }
        let kind = byte & 15;
        if kind == STRUCT && count > FOOTER_ITEMS {
            return Err(
                too_large!("a list of {count} items; at most {FOOTER_ITEMS} are read").into(),
            );
        }
        Ok((count, kind))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Parsed<()> {
        if depth > DEPTH {
            return Err(damaged!("structs are nested too deeply").into());
        }
        match kind {
            TRUE | FALSE => {}
            BYTE => drop(self.byte()?),
            4..=I64 => drop(self.varint()?),
            DOUBLE => drop(self.take(8)?),
            BINARY => {
                let size = self.varint()?;
                self.take(size)?;
            }
            LIST | SET => {
                let (count, item) = self.list()?;
                for _ in 0..count {
                    self.skip(of_item(item), depth + 1)?;
                }
            }
            MAP => {
                let count = self.varint()?;
                if count > self.data.len() as u64 {
                    return Err(Stop::End);
                }
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.skip(of_item(kinds >> 4), depth + 1)?;
                    self.skip(of_item(kinds & 15), depth + 1)?;
                }
            }
            STRUCT => {
                let mut id = 0;
                while let Some(inner) = self.field(&mut id)? {
                    self.skip(inner, depth + 1)?;
                }
            }
            UUID => drop(self.take(16)?),
            _ => return Err(damaged!("the unknown type {kind}").into()),
        }
        Ok(())
    }
}

/// In a list, each boolean is a byte.
fn of_item(kind: u8) -> u8 {
    if kind == TRUE || kind == FALSE {
        BYTE
    } else {
        kind
    }
}

impl PageHeader {
    /// The header at the beginning of `data`, and its length; None if it goes on after them.
    pub fn parse(data: &[u8]) -> Result<Option<(Self, usize)>> {
        let mut compact = Compact { data };
        match Self::read(&mut compact) {
            Ok(header) => Ok(Some((header, data.len() - compact.data.len()))),
            Err(Stop::End) => Ok(None),
            Err(Stop::Failed(failure)) => Err(failure),
        }
    }

    fn read(compact: &mut Compact<'_>) -> Parsed<Self> {
        let mut header = Self {
            kind: Kind::Index,
            size: 0,
            stored: 0,
            values: 0,
            encoding: Encoding::PLAIN,
            definition_encoding: Encoding::RLE,
            repetition_encoding: Encoding::RLE,
            nulls: 0,
            rows: 0,
            definition_bytes: 0,
            repetition_bytes: 0,
            compressed: true,
        };
        let (mut kind, mut described) = (None, None);
        let mut id = 0;
        while let Some(field) = compact.field(&mut id)? {
            match (id, field) {
                (1, 5) => kind = Some(compact.count()?),
                (2, 5) => header.size = compact.count()? as usize,
                (3, 5) => header.stored = compact.count()? as usize,
                (5, STRUCT) => {
                    described = Some(0);
                    header.read_data(compact)?;
                }
                (7, STRUCT) => {
                    described = Some(2);
                    header.read_dictionary(compact)?;
                }
                (8, STRUCT) => {
                    described = Some(3);
                    header.read_data_v2(compact)?;
                }
                _ => compact.skip(field, 0)?,
            }
        }
        header.kind = match kind {
            Some(0) => Kind::Data,
            Some(1) => return Ok(header),
            Some(2) => Kind::Dictionary,
            Some(3) => Kind::DataV2,
            _ => return Err(damaged!("a page of an unknown type").into()),
        };
        if described != kind {
            return Err(damaged!("a page header without the description of its type").into());
        }
        Ok(header)
    }

    fn read_data(&mut self, compact: &mut Compact<'_>) -> Parsed<()> {
        let mut id = 0;
        while let Some(field) = compact.field(&mut id)? {
            match (id, field) {
                (1, 5) => self.values = compact.count()?,
                (2, 5) => self.encoding = compact.encoding()?,
                (3, 5) => self.definition_encoding = compact.encoding()?,
                (4, 5) => self.repetition_encoding = compact.encoding()?,
                _ => compact.skip(field, 1)?,
            }
        }
        Ok(())
    }

    fn read_dictionary(&mut self, compact: &mut Compact<'_>) -> Parsed<()> {
        let mut id = 0;
        while let Some(field) = compact.field(&mut id)? {
            match (id, field) {
                (1, 5) => self.values = compact.count()?,
                (2, 5) => self.encoding = compact.encoding()?,
                _ => compact.skip(field, 1)?,
            }
        }
        Ok(())
    }

    fn read_data_v2(&mut self, compact: &mut Compact<'_>) -> Parsed<()> {
        let mut id = 0;
        while let Some(field) = compact.field(&mut id)? {
            match (id, field) {
                (1, 5) => self.values = compact.count()?,
                (2, 5) => self.nulls = compact.count()?,
                (3, 5) => self.rows = compact.count()?,
                (4, 5) => self.encoding = compact.encoding()?,
                (5, 5) => self.definition_bytes = compact.count()?,
                (6, 5) => self.repetition_bytes = compact.count()?,
                (7, TRUE) => self.compressed = true,
                (7, FALSE) => self.compressed = false,
                _ => compact.skip(field, 1)?,
            }
        }
        Ok(())
    }
}

/// Checks what the crate `parquet` believes of a footer: the lengths of lists, and how deep the schema is.
pub fn check_footer(data: &[u8]) -> Result<()> {
    match read_footer(&mut Compact { data }) {
        Ok(()) => Ok(()),
        Err(Stop::End) => Err(damaged!("the footer ends too early")),
        Err(Stop::Failed(failure)) => Err(failure),
    }
}

fn read_footer(compact: &mut Compact<'_>) -> Parsed<()> {
    let mut id = 0;
    while let Some(field) = compact.field(&mut id)? {
        if (id, field) == (2, LIST) {
            read_schema(compact)?;
        } else {
            compact.skip(field, 0)?;
        }
    }
    Ok(())
}

fn read_schema(compact: &mut Compact<'_>) -> Parsed<()> {
    let (count, item) = compact.list()?;
    // Of each group that has not ended, how many children are to come.
    let mut open = Vec::<u32>::new();
    for _ in 0..count {
        if item != STRUCT {
            return Err(damaged!("a schema of other things than elements").into());
        }
        let (mut children, mut id) = (0, 0);
        while let Some(field) = compact.field(&mut id)? {
            if (id, field) == (5, 5) {
                children = compact.count()?;
            } else {
                compact.skip(field, 1)?;
            }
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.len() > SCHEMA_DEPTH {
            return Err(damaged!("the schema is nested too deeply").into());
        }
    }
    Ok(())
}

//! Damage of blocks.

use std::fmt;

/// The reason why a block cannot be decoded. The texts are those of `cdfd.trevni.values.plain_decoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    BitBytes {
        bytes: usize,
        bits: usize,
    },
    Checksum {
        stored: [u8; 4],
        computed: u32,
    },
    Corrupt(&'static str),
    Lengths {
        lengths: usize,
        rows: usize,
    },
    LongNumber {
        bytes: usize,
    },
    MoreValues {
        rows: usize,
    },
    NegativeLength,
    NegativeSize,
    NotUtf8,
    Nulls,
    /// The caller announced less: its arrays are full.
    Room,
    Size {
        bytes: usize,
        expected: usize,
    },
    SizeAtLeast {
        bytes: usize,
        expected: usize,
    },
    SnappySize {
        bytes: u64,
        expected: usize,
    },
    Trailing,
    Truncated(&'static str),
    Unlikely {
        stored: usize,
        codec: &'static str,
        expected: usize,
    },
    Values {
        values: usize,
        rows: usize,
    },
    WideNumber {
        bits: u32,
    },
    WithinNumber,
    WithinValue,
}

impl fmt::Display for Damage {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BitBytes { bytes, bits } => {
                write!(to, "the block has {bytes} bytes for {bits} bits")
            }
            Self::Checksum {
                stored: [a, b, c, d],
                computed,
            } => {
                write!(
                    to,
                    "the checksum is {a:02x}{b:02x}{c:02x}{d:02x}, and that of the block is {computed:08x}"
                )
            }
            Self::Corrupt(codec) => write!(to, "the {codec} block is damaged"),
            Self::Lengths { lengths, rows } => {
                write!(to, "the block has {lengths} lengths for {rows} rows")
            }
            Self::LongNumber { bytes } => write!(to, "a number has more than {bytes} bytes"),
            Self::MoreValues { rows } => {
                write!(to, "the block has more than {rows} values for {rows} rows")
            }
            Self::NegativeLength => to.write_str("an array has a negative length"),
            Self::NegativeSize => to.write_str("the length of a string is negative"),
            Self::NotUtf8 => to.write_str("a string is not UTF-8"),
            Self::Nulls => to.write_str("a block of nulls has data"),
            Self::Room => to.write_str("the blocks have more bytes than were announced"),
            Self::Size { bytes, expected } => {
                write!(
                    to,
                    "the block has {bytes} bytes, and its descriptor says {expected}"
                )
            }
            Self::SizeAtLeast { bytes, expected } => {
                write!(
                    to,
                    "the block has at least {bytes} bytes, and its descriptor says {expected}"
                )
            }
            Self::SnappySize { bytes, expected } => {
                write!(
                    to,
                    "the Snappy block says that it has {bytes} bytes, and its descriptor says {expected}"
                )
            }
            Self::Trailing => to.write_str("the deflated block ends before its stored size"),
            Self::Truncated(codec) => write!(to, "the {codec} block is truncated"),
            Self::Unlikely {
                stored,
                codec,
                expected,
            } => {
                write!(
                    to,
                    "{stored} bytes of a {codec} block cannot have {expected} bytes decompressed"
                )
            }
            Self::Values { values, rows } => {
                write!(to, "the block has {values} values for {rows} rows")
            }
            Self::WideNumber { bits } => write!(to, "a number has more than {bits} bits"),
            Self::WithinNumber => to.write_str("the block ends within a number"),
            Self::WithinValue => to.write_str("the block ends within a value"),
        }
    }
}

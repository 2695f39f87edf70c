//! The lengths of strings in delta encodings, which say how large a page is once it is decoded.
//!
//! Source: `Encodings.md` of apache/parquet-format, "Delta Encoding" and the two that follow it.

use super::failure::{Failure, Result, damaged};
use super::varint::{NoNumber, from_zigzag, varint};

/// Numbers of a delta-encoded block of integers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths {
    /// Where the encoded numbers end.
    pub end: usize,
    pub count: usize,
    pub sum: u64,
    pub largest: u64,
}

/// Reads lengths (`DELTA_BINARY_PACKED`), of which there are `most` at most. A negative one is an error.
pub fn lengths(data: &[u8], most: usize) -> Result<Lengths> {
    let mut numbers = Numbers::new(data, most)?;
    let mut total = Lengths {
        count: numbers.left,
        ..Lengths::default()
    };
    while let Some(length) = numbers.next()? {
        total.sum += length;
        total.largest = total.largest.max(length);
    }
    total.end = numbers.bytes.at;
    Ok(total)
}

/// Checks that no text shares more with the text before it than that has. The crate `parquet` shares what there is.
pub fn check_prefixes(prefixes: &[u8], suffixes: &[u8], most: usize) -> Result<()> {
    let (mut prefixes, mut suffixes) =
        (Numbers::new(prefixes, most)?, Numbers::new(suffixes, most)?);
    let mut before = 0;
    while let Some(prefix) = prefixes.next()? {
        if prefix > before {
            return Err(damaged!(
                "a text that shares {prefix} bytes with one of {before}"
            ));
        }
        before = prefix + suffixes.next()?.unwrap_or(0);
    }
    Ok(())
}

/// Lengths as they are decoded, one after the other.
struct Numbers<'a> {
    bytes: Bytes<'a>,
    /// Parts of a block, and numbers of each.
    parts: usize,
    each: usize,
    /// How many are to come.
    left: usize,
    value: i64,
    is_first: bool,
    /// Of the block.
    least: i64,
    widths: &'a [u8],
    /// Of the part.
    packed: &'a [u8],
    width: usize,
    place: usize,
}

impl<'a> Numbers<'a> {
    fn new(data: &'a [u8], most: usize) -> Result<Self> {
        let mut bytes = Bytes { data, at: 0 };
        let (block, parts) = (bytes.varint()?, bytes.varint()?);
        let count = bytes.varint()?;
        let value = bytes.zigzag()?;
        if count > most as u64 {
            return Err(damaged!("a page of {most} values with {count} lengths"));
        }
        if parts == 0
            || parts > 1 << 16
            || block % parts != 0
            || (block / parts) % 8 != 0
            || block > 1 << 24
        {
            return Err(damaged!(
                "a page with blocks of {block} numbers in {parts} parts"
            ));
        }
        if block == 0 && count > 1 {
            return Err(damaged!("a page with empty blocks of lengths"));
        }
        let each = (block / parts) as usize;
        Ok(Self {
            bytes,
            parts: parts as usize,
            each,
            left: count as usize,
            value,
            is_first: true,
            least: 0,
            widths: &[],
            packed: &[],
            width: 0,
            place: each,
        })
    }

    fn next(&mut self) -> Result<Option<u64>> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.is_first {
            self.is_first = false;
        } else {
            if self.place == self.each {
                self.next_part()?;
            }
            let delta = bits(self.packed, self.place * self.width, self.width);
            self.value = self
                .value
                .wrapping_add(self.least)
                .wrapping_add(delta as i64);
            self.place += 1;
        }
        self.left -= 1;
        // Lengths are numbers of 32 bits, whose sums wrap.
        let length = self.value as i32;
        let known = u64::try_from(length).map_err(|_| damaged!("a string of {length} bytes"))?;
        Ok(Some(known))
    }

    fn next_part(&mut self) -> Result<()> {
        if self.widths.is_empty() {
            self.least = self.bytes.zigzag()?;
            self.widths = self.bytes.take(self.parts)?;
        }
        let (width, others) = self.widths.split_first().unwrap_or((&0, &[]));
        (self.width, self.widths, self.place) = (usize::from(*width), others, 0);
        if self.width > 64 {
            return Err(damaged!("a page with lengths of {} bits", self.width));
        }
        let (size, needed) = (
            self.each / 8 * self.width,
            self.each.min(self.left) * self.width,
        );
        self.packed = self.bytes.take_most(size, needed)?;
        Ok(())
    }
}

/// `width` bits from bit `start` on, the lowest first. Bits after the end are 0.
pub fn bits(packed: &[u8], start: usize, width: usize) -> u64 {
    let mut window = [0u8; 16];
    let there = packed.get(start / 8..).unwrap_or_default();
    let count = there.len().min(16);
    window[..count].copy_from_slice(&there[..count]);
    let shifted = u128::from_le_bytes(window) >> (start % 8);
    (shifted & ((1u128 << width) - 1)) as u64
}

struct Bytes<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        self.take_most(count, count * 8)
    }

    /// `count` bytes, of which only the first `bits` must be there: the last block may end with its last number.
    fn take_most(&mut self, count: usize, bits: usize) -> Result<&'a [u8]> {
        let there = self.data.get(self.at..).unwrap_or_default();
        if there.len() < bits.div_ceil(8).min(count) {
            return Err(too_short());
        }
        let taken = &there[..count.min(there.len())];
        self.at += taken.len();
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut left = self.data.get(self.at..).unwrap_or_default();
        let number = varint(&mut left).map_err(|why| match why {
            NoNumber::End => too_short(),
            NoNumber::TooLong => damaged!("a number of more than 64 bits"),
        })?;
        self.at = self.data.len() - left.len();
        Ok(number)
    }

    fn zigzag(&mut self) -> Result<i64> {
        Ok(from_zigzag(self.varint()?))
    }
}

fn too_short() -> Failure {
    damaged!("a page that ends before its lengths")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 128 in 4 parts: 3 numbers, of which the first is 7, then deltas of 2 + (0, 1).
    #[test]
    fn lengths_are_summed() {
        let data = [128, 1, 4, 3, 14, 4, 1, 0, 0, 0, 0b10, 0, 0, 0, 99];
        let total = lengths(&data, 3).unwrap();
        assert_eq!(
            (total.count, total.sum, total.largest, total.end),
            (3, 7 + 9 + 12, 12, 14)
        );
        assert!(check_prefixes(&[128, 1, 4, 2, 0, 0, 0, 0, 0, 0], &data, 3).is_ok());
        assert!(check_prefixes(&data, &data, 3).is_err());
        assert!(lengths(&data, 2).is_err());
        assert!(lengths(&data[..9], 3).is_err());
    }
}

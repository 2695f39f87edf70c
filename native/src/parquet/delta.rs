//! The lengths of strings in delta encodings, which say how large a page is once it is decoded.
//!
//! Source: `Encodings.md` of apache/parquet-format, "Delta Encoding" and the two that follow it.

use super::failure::{Result, damaged};

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
    let mut bytes = Bytes { data, at: 0 };
    let (block, miniblocks) = (bytes.varint()?, bytes.varint()?);
    let count = bytes.varint()?;
    let mut value = bytes.zigzag()?;
    if count > most as u64 {
        return Err(damaged!("a page of {most} values with {count} lengths"));
    }
    if miniblocks == 0
        || miniblocks > 1 << 16
        || block % miniblocks != 0
        || (block / miniblocks) % 8 != 0
        || block > 1 << 24
    {
        return Err(damaged!(
            "a page with blocks of {block} numbers in {miniblocks} parts"
        ));
    }
    let (miniblocks, each) = (miniblocks as usize, (block / miniblocks) as usize);
    let mut found = Lengths {
        count: count as usize,
        ..Lengths::default()
    };
    if count > 0 {
        found.add(value)?;
    }
    let mut left = (count as usize).saturating_sub(1);
    while left > 0 {
        if each == 0 {
            return Err(damaged!("a page with empty blocks of lengths"));
        }
        let least = bytes.zigzag()?;
        let widths = bytes.take(miniblocks)?;
        for width in widths.iter().map(|width| usize::from(*width)) {
            if left == 0 {
                break;
            }
            if width > 64 {
                return Err(damaged!("a page with lengths of {width} bits"));
            }
            let packed = bytes.take_most(each / 8 * width, each.min(left) * width)?;
            for place in 0..each.min(left) {
                let delta = bits(packed, place * width, width);
                value = value.wrapping_add(least).wrapping_add(delta as i64);
                found.add(value)?;
            }
            left -= each.min(left);
        }
    }
    found.end = bytes.at;
    Ok(found)
}

impl Lengths {
    fn add(&mut self, value: i64) -> Result<()> {
        // Lengths are numbers of 32 bits, whose sums wrap.
        let length = u64::try_from(value as i32)
            .map_err(|_| damaged!("a string of {} bytes", value as i32))?;
        self.sum += length;
        self.largest = self.largest.max(length);
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
            return Err(damaged!("a page ends before its lengths"));
        }
        let taken = &there[..count.min(there.len())];
        self.at += taken.len();
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(damaged!("a number of more than 64 bits"))
    }

    fn zigzag(&mut self) -> Result<i64> {
        let bits = self.varint()?;
        Ok((bits >> 1) as i64 ^ -((bits & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 128 in 4 parts: 3 numbers, of which the first is 7, then deltas of 2 + (0, 1).
    #[test]
    fn lengths_are_summed() {
        let data = [128, 1, 4, 3, 14, 4, 1, 0, 0, 0, 0b10, 0, 0, 0, 99];
        let found = lengths(&data, 3).unwrap();
        assert_eq!(
            (found.count, found.sum, found.largest, found.end),
            (3, 7 + 9 + 12, 12, 14)
        );
        assert!(lengths(&data, 2).is_err());
        assert!(lengths(&data[..9], 3).is_err());
    }
}

//! Levels: where the rows of lists and maps begin, and what is null. The crate `parquet` believes that none is larger than its column's largest.
//!
//! Source: `Encodings.md` of apache/parquet-format, "Run Length Encoding / Bit-Packing Hybrid".

use parquet::basic::Encoding;

use super::delta::bits;
use super::failure::{Failure, Result, damaged};

/// The levels of a page, of one kind.
#[derive(Clone, Copy)]
pub struct Levels<'a> {
    data: &'a [u8],
    /// The largest of the column.
    most: i16,
    encoding: Encoding,
    /// How many there are.
    values: u32,
}

/// How many rows begin in a page, and whether one begins with its first value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginnings {
    pub count: u64,
    pub first: bool,
}

/// Levels that are stored together.
enum Run<'a> {
    Same(u64),
    Packed(&'a [u8]),
}

impl<'a> Levels<'a> {
    /// Levels without their length.
    pub fn new(data: &'a [u8], most: i16, encoding: Encoding, values: u32) -> Self {
        Self {
            data,
            most,
            encoding,
            values,
        }
    }

    /// The levels at the beginning of a data page of version 1, and what follows them.
    pub fn split(
        page: &'a [u8],
        most: i16,
        encoding: Encoding,
        values: u32,
    ) -> Result<(Self, &'a [u8])> {
        let (data, others) = if encoding == Encoding::RLE {
            let (length, others) = page.split_first_chunk::<4>().ok_or_else(too_short)?;
            others.split_at_checked(u32::from_le_bytes(*length) as usize)
        } else {
            page.split_at_checked((values as usize * width_of(most)).div_ceil(8))
        }
        .ok_or_else(too_short)?;
        Ok((Self::new(data, most, encoding, values), others))
    }

    /// Checks that no level is larger than it may be.
    pub fn check(self) -> Result<()> {
        let width = width_of(self.most);
        let most = self.most as u64;
        // All numbers of so many bits are levels.
        let is_full = most == (1 << width) - 1;
        self.runs(|run, count| match run {
            Run::Same(level) if level <= most => Ok(()),
            Run::Packed(_) if is_full => Ok(()),
            Run::Packed(packed)
                if (0..count).all(|place| bits(packed, place * width, width) <= most) =>
            {
                Ok(())
            }
            _ => Err(damaged!("a page with levels of more than {most}")),
        })
    }

    /// Counts the repetition levels that are 0.
    pub fn beginnings(self) -> Result<Beginnings> {
        let width = width_of(self.most);
        let mut found = Beginnings::default();
        let mut is_first = true;
        self.runs(|run, count| {
            let (zeros, first) = match run {
                Run::Same(level) => (if level == 0 { count } else { 0 }, level == 0),
                Run::Packed(packed) => (zeros(packed, width, count), bits(packed, 0, width) == 0),
            };
            found.count += zeros as u64;
            found.first |= is_first && first;
            is_first = false;
            Ok(())
        })?;
        Ok(found)
    }

    /// Checks that a row's further values are in lists that have values before them. These are its repetition levels.
    ///
    /// # Arguments
    /// * `least` - by repetition level, the smallest definition level of a value in such a list
    /// * `before` - definition level of the last value of the page before; the same of this page is returned
    pub fn check_lists(self, definition: Self, least: &[i16], before: u64) -> Result<u64> {
        let width = width_of(self.most);
        let mut repetition = Vec::<u8>::with_capacity(self.values as usize);
        self.runs(|run, count| {
            match run {
                Run::Same(level) => repetition.resize(repetition.len() + count, level as u8),
                Run::Packed(packed) => repetition
                    .extend((0..count).map(|place| bits(packed, place * width, width) as u8)),
            }
            Ok(())
        })?;
        let width = width_of(definition.most);
        let most = least.iter().copied().max().unwrap_or(0) as u64;
        let (mut left, mut before) = (repetition.as_slice(), before);
        let mut is_valid = |level: u64, of: &u8| {
            let least = least.get(usize::from(*of)).map_or(0, |least| *least as u64);
            level.min(std::mem::replace(&mut before, level)) >= least
        };
        definition.runs(|run, count| {
            let (now, later) = left.split_at(count.min(left.len()));
            left = later;
            let valid = match run {
                Run::Same(level) if level >= most => {
                    now.first().is_none_or(|of| is_valid(level, of))
                }
                Run::Same(level) => now.iter().all(|of| is_valid(level, of)),
                Run::Packed(packed) => now
                    .iter()
                    .enumerate()
                    .all(|(place, of)| is_valid(bits(packed, place * width, width), of)),
            };
            if valid {
                Ok(())
            } else {
                Err(damaged!("a second value of a list that has none"))
            }
        })?;
        Ok(before)
    }

    /// Calls `each` with every run of levels and how many of them count, which are not 0.
    fn runs(self, mut each: impl FnMut(Run<'a>, usize) -> Result<()>) -> Result<()> {
        let width = width_of(self.most);
        let (mut data, mut left) = (self.data, self.values as usize);
        if self.encoding != Encoding::RLE {
            return if left > 0 {
                each(Run::Packed(data), left)
            } else {
                Ok(())
            };
        }
        while left > 0 {
            let header = varint(&mut data)?;
            let length = usize::try_from(header >> 1).unwrap_or(usize::MAX);
            let (run, count);
            if header & 1 == 1 {
                // The last group may end with its last level.
                let (packed, others) = data.split_at(length.saturating_mul(width).min(data.len()));
                count = length.saturating_mul(8).min(left);
                if packed.len() * 8 < count * width {
                    return Err(too_short());
                }
                (run, data) = (Run::Packed(packed), others);
            } else {
                let (level, others) = data
                    .split_at_checked(width.div_ceil(8))
                    .ok_or_else(too_short)?;
                count = length.min(left);
                (run, data) = (Run::Same(bits(level, 0, 16)), others);
            }
            if count > 0 {
                each(run, count)?;
            }
            left -= count;
        }
        Ok(())
    }
}

/// Bits of a level.
fn width_of(most: i16) -> usize {
    (16 - (most as u16).leading_zeros()) as usize
}

/// How many of the first `count` levels are 0.
fn zeros(packed: &[u8], width: usize, count: usize) -> usize {
    if width != 1 {
        let places = 0..count;
        return places
            .filter(|place| bits(packed, place * width, width) == 0)
            .count();
    }
    let (whole, others) = packed.split_at((count / 8).min(packed.len()));
    let last = others.first().copied().unwrap_or(0xff) | (0xff << (count % 8));
    let ones = whole.iter().map(|byte| byte.count_ones() as usize);
    8 * whole.len() - ones.sum::<usize>() + last.count_zeros() as usize
}

fn varint(data: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, others) = data.split_first().ok_or_else(too_short)?;
        *data = others;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Ok(value);
        }
    }
    Err(damaged!("a run of more than 64 bits"))
}

fn too_short() -> Failure {
    damaged!("a page that ends before its levels")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginnings(data: &[u8], most: i16, values: u32) -> Option<(u64, bool)> {
        let found = Levels::new(data, most, Encoding::RLE, values).beginnings();
        found.ok().map(|found| (found.count, found.first))
    }

    #[test]
    fn zeros_are_counted_in_runs_and_groups() {
        // 3 of level 0, then 8 levels: 1 0 1 1 0 0 1 1, of which 6 count.
        assert_eq!(
            beginnings(&[6, 0, 3, 0b1100_1101], 1, 9),
            Some((3 + 3, true))
        );
        // Two bits each: 1 0 2 0.
        assert_eq!(beginnings(&[3, 0b0010_0001, 0], 2, 4), Some((2, false)));
        assert_eq!(beginnings(&[6, 0], 1, 4), None);
        assert_eq!(beginnings(&[5, 0], 1, 16), None);
        assert_eq!(beginnings(&[0, 0, 2, 0], 1, 1), Some((1, true)));
    }

    #[test]
    fn a_list_without_values_has_no_second_one() {
        let check = |repetition: &[u8], definition: &[u8]| {
            let repetition = Levels::new(repetition, 1, Encoding::RLE, 8);
            repetition.check_lists(Levels::new(definition, 3, Encoding::RLE, 8), &[0, 2], 0)
        };
        // Levels 0 1 0 1 0 1 0 1 with definition levels 3, or 1 3 1 3 and so on.
        assert!(check(&[3, 0b1010_1010], &[16, 3]).is_ok());
        assert!(check(&[3, 0b1010_1010], &[16, 1]).is_err());
        assert!(check(&[3, 0b1010_1010], &[3, 0b1101_1101, 0b1101_1101]).is_err());
        assert!(check(&[3, 0b0100_0100], &[3, 0b0111_1101, 0b0111_1111]).is_ok());
        assert!(check(&[3, 0b0101_0101], &[16, 3]).is_err());
    }

    #[test]
    fn levels_beyond_the_largest_are_damage() {
        let check =
            |data: &[u8], most, values| Levels::new(data, most, Encoding::RLE, values).check();
        assert!(check(&[8, 1], 1, 4).is_ok());
        assert!(check(&[8, 2], 1, 4).is_err());
        assert!(check(&[3, 0b0010_0001, 0], 2, 4).is_ok());
        assert!(check(&[3, 0b0011_0001, 0], 2, 4).is_err());
        // The group has more levels than the page.
        assert!(check(&[3, 0b0010_0001, 0xff], 2, 4).is_ok());
    }
}

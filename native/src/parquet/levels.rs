//! Levels: where the rows of lists and maps begin, and what is null. The crate `parquet` believes that none is larger than its column's largest.
//!
//! Source: `Encodings.md` of apache/parquet-format, "Run Length Encoding / Bit-Packing Hybrid".

use parquet::basic::Encoding;

use super::delta::bits;
use super::failure::{Failure, Result, damaged};
use super::varint::{NoNumber, varint};

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

/// Levels that are stored together, one byte each.
pub enum Unpacked<'a> {
    Same(u8, usize),
    Each(&'a [u8]),
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

    /// Bytes that they have.
    pub fn size(&self) -> usize {
        self.data.len()
    }

    /// Calls `each` with all levels, at most `most` of those that differ at a time. None is larger than it may be.
    pub fn unpack_some(
        self,
        most: usize,
        mut each: impl FnMut(Unpacked<'_>) -> Result<()>,
    ) -> Result<()> {
        let width = width_of(self.most);
        let mut levels = Vec::new();
        self.runs(|run, count| match run {
            Run::Same(level) => each(Unpacked::Same(self.valid(level)?, count)),
            Run::Packed(packed) => {
                let parts = packed.chunks(width * most / 8);
                parts
                    .zip((0..count).step_by(most))
                    .try_for_each(|(packed, before)| {
                        levels.clear();
                        unpack_groups(packed, width, most.min(count - before), &mut levels);
                        self.valid(levels.iter().copied().fold(0, u8::max).into())?;
                        each(Unpacked::Each(&levels))
                    })
            }
        })
    }

    fn valid(&self, level: u64) -> Result<u8> {
        let valid = u8::try_from(level).ok();
        valid
            .filter(|level| i16::from(*level) <= self.most)
            .ok_or_else(|| damaged!("a page with levels of more than {}", self.most))
    }

    /// Writes all levels, of which none is larger than it may be.
    pub fn unpack(self, out: &mut Vec<u8>) -> Result<()> {
        let width = width_of(self.most);
        out.clear();
        // A schema is not so deep that a level has more bits.
        let most = u8::try_from(self.most).map_err(|_| damaged!("levels of {width} bits"))?;
        out.reserve(self.values as usize + 8);
        self.runs(|run, count| {
            match run {
                Run::Same(level) => {
                    let level = u8::try_from(level).unwrap_or(u8::MAX);
                    out.resize(out.len() + count, level);
                }
                Run::Packed(packed) => unpack_groups(packed, width, count, out),
            }
            Ok(())
        })?;
        if out.iter().fold(0, |largest, level| largest.max(*level)) > most {
            return Err(damaged!("a page with levels of more than {most}"));
        }
        Ok(())
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
            let header = varint(&mut data).map_err(|why| match why {
                NoNumber::End => too_short(),
                NoNumber::TooLong => damaged!("a run of more than 64 bits"),
            })?;
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

/// Appends `count` levels, whose groups of eight have `width` bytes each.
fn unpack_groups(packed: &[u8], width: usize, count: usize, out: &mut Vec<u8>) {
    /// By byte, its levels of one bit, and of two: those of most lists.
    static ONES: [[u8; 8]; 256] = levels_of_bytes();
    static PAIRS: [[u8; 4]; 256] = levels_of_bytes();
    let (start, end) = (out.len(), out.len() + count);
    let packed = &packed[..packed.len().min((count * width).div_ceil(8))];
    // Room for all groups at once: it is not looked for again for each of them.
    match width {
        1 => {
            out.resize(start + packed.len() * 8, 0);
            let (groups, _) = out[start..].as_chunks_mut();
            for (group, byte) in groups.iter_mut().zip(packed) {
                *group = ONES[usize::from(*byte)];
            }
        }
        2 => {
            out.resize(start + packed.len() * 4, 0);
            let (groups, _) = out[start..].as_chunks_mut();
            for (group, byte) in groups.iter_mut().zip(packed) {
                *group = PAIRS[usize::from(*byte)];
            }
        }
        _ => {
            let mask = (1u64 << width) - 1;
            out.resize(start + packed.len().div_ceil(width) * 8, 0);
            let (groups, _) = out[start..].as_chunks_mut::<8>();
            for (group, at) in groups.iter_mut().zip((0..).step_by(width)) {
                let stored = &packed[at..];
                let bytes = stored.first_chunk().copied().unwrap_or_else(|| {
                    let mut bytes = [0; 8];
                    let length = stored.len().min(8);
                    bytes[..length].copy_from_slice(&stored[..length]);
                    bytes
                });
                let levels = u64::from_le_bytes(bytes);
                *group = std::array::from_fn(|place| (levels >> (place * width) & mask) as u8);
            }
        }
    }
    out.resize(end, 0);
}

/// For each byte, its `N` levels.
const fn levels_of_bytes<const N: usize>() -> [[u8; N]; 256] {
    let mut levels = [[0; N]; 256];
    let (mut byte, width) = (0, 8 / N);
    while byte < 256 {
        let mut place = 0;
        while place < N {
            levels[byte][place] = (byte >> (place * width)) as u8 & ((1 << width) - 1);
            place += 1;
        }
        byte += 1;
    }
    levels
}

/// Checks that a row's further values are in lists that have values before them, and counts rows.
///
/// # Arguments
/// * `repetition`, `definition` - levels of a page, as many of both
/// * `least` - by repetition level, the smallest definition level of a value in a list that has values
/// * `before` - definition level of the last value of the page before
pub fn check_lists(
    repetition: &[u8],
    definition: &[u8],
    least: &[u8],
    before: u8,
) -> Result<Beginnings> {
    let (Some(first), Some(defined)) = (repetition.first(), definition.first()) else {
        return Ok(Beginnings::default());
    };
    let least_of = |level: u8| least.get(usize::from(level)).copied().unwrap_or(u8::MAX);
    let pairs = definition.iter().zip(&definition[1..]);
    let pairs = repetition[1..].iter().zip(pairs);
    // Without branches: most pages are valid.
    let valid = if let [_, only] = *least {
        pairs.fold(true, |valid, (level, (one, other))| {
            valid & ((*level == 0) | (*one.min(other) >= only))
        })
    } else {
        pairs.fold(true, |valid, (level, (one, other))| {
            valid & (*one.min(other) >= least_of(*level))
        })
    };
    if !valid || before.min(*defined) < least_of(*first) {
        return Err(damaged!("a second value of a list that has none"));
    }
    Ok(Beginnings {
        count: count_zeros(repetition),
        first: *first == 0,
    })
}

/// Counted in bytes, of which the processor adds many at a time.
fn count_zeros(levels: &[u8]) -> u64 {
    let counts = levels.chunks(255).map(|levels| {
        let zeros = levels.iter().map(|level| u8::from(*level == 0));
        u64::from(zeros.sum::<u8>())
    });
    counts.sum()
}

fn too_short() -> Failure {
    damaged!("a page that ends before its levels")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(data: &[u8], most: i16, values: u32) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let levels = Levels::new(data, most, Encoding::RLE, values);
        levels.unpack(&mut out).ok().map(|()| out)
    }

    #[test]
    fn levels_are_in_runs_and_groups() {
        assert_eq!(
            unpacked(&[6, 0, 3, 0b1100_1101], 1, 9),
            Some(vec![0, 0, 0, 1, 0, 1, 1, 0, 0])
        );
        assert_eq!(unpacked(&[3, 0b0010_0001, 0], 2, 4), Some(vec![1, 0, 2, 0]));
        assert_eq!(unpacked(&[6, 0], 1, 4), None);
        assert_eq!(unpacked(&[5, 0], 1, 16), None);
        assert_eq!(unpacked(&[0, 0, 2, 0], 1, 1), Some(vec![0]));
        assert_eq!(unpacked(&[8, 2], 1, 4), None);
        assert_eq!(unpacked(&[3, 0b0011_0001, 0], 2, 4), None);
    }

    #[test]
    fn a_list_without_values_has_no_second_one() {
        let rows = |repetition: &[u8], definition: &[u8], before| {
            let lists = check_lists(repetition, definition, &[0, 2], before);
            lists.ok().map(|lists| (lists.count, lists.first))
        };
        assert_eq!(rows(&[0, 1, 0, 1], &[3, 2, 3, 3], 0), Some((2, true)));
        assert_eq!(rows(&[0, 1, 0, 1], &[1, 3, 3, 3], 0), None);
        assert_eq!(rows(&[0, 1, 0, 0], &[3, 1, 3, 3], 0), None);
        assert_eq!(rows(&[1, 0], &[3, 0], 3), Some((1, false)));
        assert_eq!(rows(&[1, 0], &[3, 0], 1), None);
        assert!(check_lists(&[0, 2], &[5, 5], &[0, 2, 4], 0).is_ok());
        assert!(check_lists(&[0, 2], &[3, 5], &[0, 2, 4], 0).is_err());
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

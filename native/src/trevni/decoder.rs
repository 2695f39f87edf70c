//! Blocks of a column, as a file has them, into lengths and values.

use super::damage::Damage;
use super::lengths::{Lengths, LengthsState};
use super::stored::{Codec, check_crc32};
use super::values::{Bits, Count, Fixed, Integers, Nulls, Text, Values};
use super::varint;

/// The arrays that values are put into. Each kind of values has its own.
pub enum Target<'a> {
    Nulls,
    Ints(&'a mut [i32]),
    Longs(&'a mut [i64]),
    Fixed4(&'a mut [u8]),
    Fixed8(&'a mut [u8]),
    Bits(&'a mut [u8]),
    Text {
        data: &'a mut [u8],
        offsets: &'a mut [i32],
        utf8: bool,
    },
}

/// Some blocks of a file: its bytes from somewhere on, and for each block where it begins in them, its bytes there and when it is
/// decompressed, and its rows.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    pub data: &'a [u8],
    pub starts: &'a [i64],
    pub stored: &'a [i64],
    pub sizes: &'a [i64],
    pub rows: &'a [i64],
}

/// The state of a column's decoder.
pub struct Decoder {
    pub codec: Codec,
    pub crc32: bool,
    /// Whether a block's rows say how many lengths, or values if there are none, it has. They do not if the column has a parent.
    pub counted: bool,
    /// Whether lengths may have runs.
    pub runs: bool,
    pub count: Count,
    pub lengths: LengthsState,
    /// Blocks that are decoded.
    pub blocks: usize,
    checked: Count,
    room: Vec<u8>,
}

impl Decoder {
    pub fn new(codec: Codec, crc32: bool, counted: bool, runs: bool) -> Self {
        Self {
            codec,
            crc32,
            counted,
            runs,
            count: Count::default(),
            lengths: LengthsState::default(),
            blocks: 0,
            checked: Count::default(),
            room: Vec::new(),
        }
    }

    /// Decode blocks, behind those before them. `blocks` is then the number of the first that is damaged, or of the next one.
    pub fn append(
        &mut self,
        blocks: Blocks,
        lengths: Option<&mut [i64]>,
        target: Target,
    ) -> Result<(), Damage> {
        let mut count = self.count;
        let mut checked = self.checked;
        let counter = &mut count;
        let result = match target {
            Target::Nulls => self.read_blocks(blocks, lengths, &mut Nulls),
            Target::Ints(target) => self.read_blocks(
                blocks,
                lengths,
                &mut Integers {
                    target,
                    count: counter,
                },
            ),
            Target::Longs(target) => self.read_blocks(
                blocks,
                lengths,
                &mut Integers {
                    target,
                    count: counter,
                },
            ),
            Target::Fixed4(target) => self.read_blocks(
                blocks,
                lengths,
                &mut Fixed::<4> {
                    target,
                    count: counter,
                },
            ),
            Target::Fixed8(target) => self.read_blocks(
                blocks,
                lengths,
                &mut Fixed::<8> {
                    target,
                    count: counter,
                },
            ),
            Target::Bits(target) => self.read_blocks(
                blocks,
                lengths,
                &mut Bits {
                    target,
                    count: counter,
                },
            ),
            Target::Text {
                data,
                offsets,
                utf8,
            } => {
                let checked = utf8.then_some(&mut checked);
                self.read_blocks(
                    blocks,
                    lengths,
                    &mut Text {
                        data,
                        offsets,
                        count: counter,
                        checked,
                    },
                )
            }
        };
        self.count = count;
        self.checked = checked;
        result
    }

    fn read_blocks<V: Values>(
        &mut self,
        blocks: Blocks,
        lengths: Option<&mut [i64]>,
        values: &mut V,
    ) -> Result<(), Damage> {
        let Self {
            codec,
            crc32,
            counted,
            runs,
            ..
        } = *self;
        let mut lengths = lengths.map(|each| Lengths::new(each, &mut self.lengths));
        let numbers = blocks
            .starts
            .iter()
            .zip(blocks.stored)
            .zip(blocks.sizes)
            .zip(blocks.rows);
        for (((&start, &stored), &size), &rows) in numbers {
            let [start, stored, size, rows] = [start, stored, size, rows]
                .map(|number| usize::try_from(number).unwrap_or(usize::MAX));
            let data = blocks.data.get(start..).ok_or(Damage::Room)?;
            let (data, behind) = data.split_at_checked(stored).ok_or(Damage::Room)?;
            let block = codec.decompress(data, size, &mut self.room)?;
            if crc32 {
                check_crc32(block, *behind.first_chunk().ok_or(Damage::Room)?, codec)?;
            }
            let rows = counted.then_some(rows);
            match &mut lengths {
                Some(lengths) => read_arrays(block, lengths, values, rows, runs)?,
                None => read_values(block, values, rows)?,
            }
            values.end_block()?;
            self.blocks += 1;
        }
        Ok(())
    }
}

fn read_values<V: Values>(
    mut block: &[u8],
    values: &mut V,
    rows: Option<usize>,
) -> Result<(), Damage> {
    match rows {
        Some(rows) => values.read_rows(block, rows),
        None => {
            values.read(&mut block, usize::MAX)?;
            if block.is_empty() {
                Ok(())
            } else {
                Err(Damage::Room)
            }
        }
    }
}

/// Lengths, and the values behind each. A negative number is a run of lengths 0 or 1: -1 is two zeros, -2 two ones, -3 three zeros.
fn read_arrays<V: Values>(
    mut block: &[u8],
    lengths: &mut Lengths,
    values: &mut V,
    rows: Option<usize>,
    runs: bool,
) -> Result<(), Damage> {
    let before = lengths.count();
    while !block.is_empty() {
        let number: i32 = varint::read(&mut block)?;
        if let Ok(length) = usize::try_from(number) {
            lengths.push(number.into());
            values.read_array(&mut block, length)?;
            continue;
        }
        if !runs {
            return Err(Damage::NegativeLength);
        }
        let count = (number.unsigned_abs() as usize).div_ceil(2) + 1;
        let one = number % 2 == 0;
        lengths.push_run(one.into(), count);
        if one {
            values.read_run(&mut block, count)?;
        }
    }
    match rows {
        Some(rows) if rows != lengths.count() - before => Err(Damage::Lengths {
            lengths: lengths.count() - before,
            rows,
        }),
        _ => Ok(()),
    }
}

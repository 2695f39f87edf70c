//! Rows put together from cells and what stands between them.

use super::binary::{Length, put_bytes, put_fixed, put_unscaled, put_with_length};
use super::numbers::{put_decimal, put_integer, put_thousandths, put_unsigned};
use super::strings::put_string;
use super::times::Calendar;
use crate::room::{Literal, Literals, Room, Stop, Texts};

/// The cells of a column.
pub enum Cells<'a> {
    /// Pieces of text, one after the other.
    Texts(Texts<'a>, Vec<Piece<'a>>),
    Integers(&'a [i64]),
    Unsigned(&'a [u64]),
    /// Numbers of at most three decimals.
    Thousandths(&'a [f64]),
    /// Unscaled numbers, and how many digits follow the point.
    Decimals(&'a [i64], usize),
    /// Bits, and the place of the first one.
    Booleans(&'a [u8], usize),
    Strings(Texts<'a>),
    /// Days since 1970.
    Dates(&'a [i64], Calendar),
    /// Microseconds since 1970, and whether there is a zone.
    Timestamps(&'a [i64], bool, Calendar),
    /// Rows of other columns, which of them each cell is, and what precedes it.
    Rows(Box<Rows<'a>>, Option<&'a [i64]>, Length),
    /// Integers in groups of seven bits, in zigzag form or as they are.
    Varints(&'a [i64], Length),
    /// So many bytes each.
    Fixed(&'a [u8], usize),
    /// Bytes behind their length.
    Bytes(Texts<'a>, Length),
    /// Unscaled numbers as bytes behind their length.
    Unscaled(&'a [i64], Length),
}

/// Which text is a piece of a cell.
pub enum Piece<'a> {
    Same(usize),
    OfRow(&'a [i64]),
}

impl Piece<'_> {
    #[inline]
    fn index(&self, row: usize) -> Result<usize, Stop> {
        match self {
            Piece::Same(index) => Ok(*index),
            Piece::OfRow(indices) => {
                usize::try_from(at(indices, row)?).map_err(|_| Stop::OutOfBounds)
            }
        }
    }
}

#[inline]
fn at<T: Copy>(values: &[T], row: usize) -> Result<T, Stop> {
    values.get(row).copied().ok_or(Stop::OutOfBounds)
}

impl Cells<'_> {
    #[inline]
    fn write(&mut self, room: &mut Room, row: usize) -> Result<(), Stop> {
        match self {
            Cells::Strings(texts) => put_string(room, *texts, row),
            Cells::Integers(values) => put_integer(room, at(values, row)?),
            Cells::Texts(texts, pieces) => pieces
                .iter()
                .try_for_each(|piece| room.put_text(texts.get(piece.index(row)?)?)),
            Cells::Timestamps(values, zone, calendar) => {
                calendar.put_timestamp(room, at(values, row)?, *zone)
            }
            Cells::Decimals(values, scale) => put_decimal(room, at(values, row)?, *scale),
            Cells::Thousandths(values) => put_thousandths(room, at(values, row)?),
            Cells::Dates(values, calendar) => calendar.put_date(room, at(values, row)?),
            Cells::Unsigned(values) => put_unsigned(room, at(values, row)?),
            Cells::Rows(rows, index, length) => {
                let row = match index {
                    Some(index) => {
                        usize::try_from(at(index, row)?).map_err(|_| Stop::OutOfBounds)?
                    }
                    None => row,
                };
                put_with_length(room, *length, |room| rows.write_row(room, row))
            }
            Cells::Varints(values, Length::Zigzag) => room.put_zigzag(at(values, row)?),
            Cells::Varints(values, _) => room.put_varint(at(values, row)? as u64),
            Cells::Fixed(data, size) => put_fixed(room, data, *size, row),
            Cells::Bytes(texts, length) => put_bytes(room, texts.get(row)?, *length),
            Cells::Unscaled(values, length) => put_unscaled(room, at(values, row)?, *length),
            Cells::Booleans(bits, first) => {
                let bit = *first + row;
                room.put(if at(bits, bit / 8)? >> (bit % 8) & 1 != 0 {
                    b"true"
                } else {
                    b"false"
                })
            }
        }
    }
}

/// A column.
pub struct Column<'a> {
    pub cells: Cells<'a>,
    /// Not 0 for each row that is null.
    pub nulls: Option<&'a [u8]>,
    /// The text before and after every cell that is not null.
    pub marks: [&'a [u8]; 2],
    /// The text of a cell that is null.
    pub null: &'a [u8],
}

impl Column<'_> {
    #[inline]
    fn is_null(&self, row: usize) -> Result<bool, Stop> {
        self.nulls
            .map_or(Ok(false), |nulls| Ok(at(nulls, row)? != 0))
    }
}

/// Columns, and what stands before each cell, with the marks of both: by whether the cell before it is null, and whether it is.
pub struct Rows<'a> {
    columns: Vec<([[Literal; 2]; 2], Column<'a>)>,
    end: [Literal; 2],
    literals: Literals,
}

impl<'a> Rows<'a> {
    /// `gaps` stand before, between and after the cells: one more than there are columns, or `None` is returned.
    pub fn new(gaps: &[&[u8]], columns: Vec<Column<'a>>) -> Option<Self> {
        let (last, gaps) = gaps.split_last()?;
        if gaps.len() != columns.len() {
            return None;
        }
        let mut literals = Literals::new();
        let mut closing: &[u8] = b"";
        let mut parts = Vec::with_capacity(columns.len());
        for (gap, column) in gaps.iter().zip(columns) {
            let [opening, next] = column.marks;
            let before = [closing, b""].map(|closing| {
                [opening, column.null].map(|text| literals.add(&[closing, gap, text]))
            });
            parts.push((before, column));
            closing = next;
        }
        let end = [closing, b""].map(|closing| literals.add(&[closing, last]));
        literals.finish();
        Some(Rows {
            columns: parts,
            end,
            literals,
        })
    }

    /// Write a row.
    #[inline]
    fn write_row(&mut self, room: &mut Room, row: usize) -> Result<(), Stop> {
        let mut was_null = false;
        for (before, column) in &mut self.columns {
            let is_null = column.is_null(row)?;
            room.put_text(
                self.literals
                    .get(before[usize::from(was_null)][usize::from(is_null)]),
            )?;
            if !is_null {
                column.cells.write(room, row)?;
            }
            was_null = is_null;
        }
        room.put_text(self.literals.get(self.end[usize::from(was_null)]))
    }

    /// Write rows from `row` on, while there is room.
    ///
    /// `offsets` has the start of `row` at its place, and gets the end of each row at the place after. Returns the row after the last one.
    pub fn write(
        &mut self,
        row: usize,
        data: &mut [u8],
        offsets: &mut [i64],
    ) -> Result<usize, Stop> {
        let Some([start, ends @ ..]) = offsets.get_mut(row..) else {
            return Err(Stop::OutOfBounds);
        };
        let mut room = Room::new(
            data,
            usize::try_from(*start).map_err(|_| Stop::OutOfBounds)?,
        );
        for (row, end) in (row..).zip(ends) {
            match self.write_row(&mut room, row) {
                Ok(()) => *end = room.end() as i64,
                Err(Stop::Full) => return Ok(row),
                Err(stop) => return Err(stop),
            }
        }
        Ok(offsets.len() - 1)
    }
}

//! Dates and times as text.

use super::numbers::eight;
use crate::room::{Room, Stop};

/// Microseconds.
const DAY: i64 = 86_400_000_000;
/// 0000-01-01 and 9999-12-31, as days since 1970.
const FIRST_DAY: i64 = -719_528;
const LAST_DAY: i64 = 2_932_896;

/// The text of the day that was written last: most rows of a table are of the day of those before them.
pub struct Calendar {
    day: i64,
    text: [u8; 10],
}

impl Default for Calendar {
    fn default() -> Self {
        Calendar {
            day: i64::MIN,
            text: [0; 10],
        }
    }
}

impl Calendar {
    #[inline]
    fn text(&mut self, day: i64) -> Result<&[u8; 10], Stop> {
        if day != self.day {
            self.text = date(day)?;
            self.day = day;
        }
        Ok(&self.text)
    }

    /// Write `YYYY-MM-DD` of a day since 1970.
    #[inline]
    pub fn put_date(&mut self, room: &mut Room, day: i64) -> Result<(), Stop> {
        let date = self.text(day)?;
        room.put_short(|out| {
            *out = *date;
            date.len()
        })
    }

    /// Write `YYYY-MM-DDTHH:MM:SS.ffffff` of microseconds since 1970, with a `Z` if there is a zone.
    #[inline]
    pub fn put_timestamp(&mut self, room: &mut Room, time: i64, zone: bool) -> Result<(), Stop> {
        let date = self.text(time.div_euclid(DAY))?;
        let of_day = time.rem_euclid(DAY) as u64;
        let seconds = of_day / 1_000_000;
        let [h0, h1, m0, m1, s0, s1, ..] =
            eight(seconds / 3600 * 1_000_000 + seconds / 60 % 60 * 10_000 + seconds % 60 * 100);
        let [_, _, micros @ ..] = eight(of_day % 1_000_000);
        room.put_short(|out: &mut [u8; 27]| {
            out[..10].copy_from_slice(date);
            out[10..20].copy_from_slice(&[b'T', h0, h1, b':', m0, m1, b':', s0, s1, b'.']);
            out[20..26].copy_from_slice(&micros);
            out[26] = b'Z';
            26 + usize::from(zone)
        })
    }
}

/// A day since 1970. Years begin on the first of March here, so that a leap day ends its year.
fn date(day: i64) -> Result<[u8; 10], Stop> {
    if !(FIRST_DAY..=LAST_DAY).contains(&day) {
        return Err(Stop::OutOfCalendar);
    }
    // From the first of March of the year -400 on: no number is negative.
    let days = (day + 719_468 + 146_097) as u64;
    let (era, in_era) = (days / 146_097, days % 146_097);
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year + year / 4 - year / 100);
    let month = (5 * in_year + 2) / 153;
    let in_month = in_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + 400 * era + u64::from(month <= 2) - 400;
    let [y0, y1, y2, y3, m0, m1, d0, d1] = eight(year * 10_000 + month * 100 + in_month);
    Ok([y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_follows_the_day_before() {
        let (mut year, mut month, mut day) = (0, 1, 1);
        for number in FIRST_DAY..=LAST_DAY {
            assert_eq!(
                date(number).unwrap().as_slice(),
                format!("{year:04}-{month:02}-{day:02}").as_bytes()
            );
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            day += 1;
            if day
                > [
                    31,
                    28 + i32::from(leap),
                    31,
                    30,
                    31,
                    30,
                    31,
                    31,
                    30,
                    31,
                    30,
                    31,
                ][month - 1]
            {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!(
            (year, date(0).unwrap().as_slice()),
            (10_000, b"1970-01-01".as_slice())
        );
        assert_eq!(date(FIRST_DAY - 1), Err(Stop::OutOfCalendar));
        assert_eq!(date(LAST_DAY + 1), Err(Stop::OutOfCalendar));
    }
}

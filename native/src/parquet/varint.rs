//! Numbers of variable length, as Thrift and the encodings of Parquet have them: seven bits a byte, the lowest first.

/// Why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNumber {
    /// The bytes end within it.
    End,
    /// It has more than 64 bits.
    TooLong,
}

/// The number at the beginning of `data`, which begins after it then.
pub fn varint(data: &mut &[u8]) -> Result<u64, NoNumber> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, others) = data.split_first().ok_or(NoNumber::End)?;
        *data = others;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Ok(value);
        }
    }
    Err(NoNumber::TooLong)
}

/// The number of a zigzag form: 0, -1, 1, -2 for 0, 1, 2, 3.
pub fn from_zigzag(bits: u64) -> i64 {
    (bits >> 1) as i64 ^ -((bits & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_with_a_byte_below_128() {
        let mut data: &[u8] = &[0xac, 0x02, 7];
        assert_eq!((varint(&mut data), data), (Ok(300), &[7u8][..]));
        assert_eq!(varint(&mut &[0x80u8][..]), Err(NoNumber::End));
        assert_eq!(varint(&mut &[0xffu8; 11][..]), Err(NoNumber::TooLong));
        assert_eq!([0, 1, 2, 3].map(from_zigzag), [0, -1, 1, -2]);
    }
}

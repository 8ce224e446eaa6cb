//! Two sides that know a secret agree on a key, so that nobody learns anything to guess the secret from: CPace, a
//! key exchange by password, over ristretto255.
//!
//! The secret gives a point of the group. Each side multiplies it by a random number of its own and sends the product;
//! both then multiply what they got. Who does not know the secret starts from another point, so the keys differ, and what
//! was sent says nothing: a stranger, on either side, tries one guess with each connection and gets no other use of it. A
//! key that becomes known later says nothing of other connections.
//!
//! A host sends the same product to all who knock, so that a crowd of strangers costs it nothing. It names each connection
//! at random, and the key is of that connection: nothing of one fits another.

use super::failed;
use super::secret::{BYTES, Secret, random};
use crate::error::Error;
use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::IsIdentity;

/// Side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The side that was asked to let somebody in.
    Host,
    Guest,
}

/// One side, which has not heard of the other yet.
pub(super) struct Exchange {
    side: Side,
    own: Scalar,
    /// Bytes that the other side gets.
    pub public: [u8; BYTES],
}

impl Exchange {
    /// Begins.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the system gives no random numbers.
    pub fn begin(side: Side, secret: &Secret) -> Result<Exchange, Error> {
        let mut wide = [0; 2 * BYTES];
        wide[..BYTES].copy_from_slice(&random()?);
        wide[BYTES..].copy_from_slice(&random()?);
        let own = Scalar::from_bytes_mod_order_wide(&wide);
        let public = base(secret) * own;
        // Not by chance: 1 of 2^252.
        if public.is_identity() {
            return Err(failed("a random number is zero", "try again"));
        }
        Ok(Exchange {
            side,
            own,
            public: public.compress().to_bytes(),
        })
    }

    /// The key of a connection that the host has named at random, with what the other side sent and what else both must
    /// agree on. None if no honest side sends that.
    pub fn finish(&self, connection: &[u8], theirs: &[u8], beside: &[u8]) -> Option<Key> {
        let point = CompressedRistretto::from_slice(theirs).ok()?.decompress()?;
        if point.is_identity() {
            return None;
        }
        let shared = (point * self.own).compress();
        let (host, guest) = match self.side {
            Side::Host => (&self.public[..], theirs),
            Side::Guest => (theirs, &self.public[..]),
        };
        let mut hasher = blake3::Hasher::new_derive_key("counterflow's key of a connection");
        for part in [connection, beside, host, guest, shared.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Some(Key(*hasher.finalize().as_bytes()))
    }
}

/// The point that a secret gives.
fn base(secret: &Secret) -> RistrettoPoint {
    RistrettoPoint::from_uniform_bytes(&secret.point())
}

/// Key that both sides of a connection have, and nobody else.
pub(super) struct Key([u8; BYTES]);

impl Key {
    /// Proof to the other side that this one has the key.
    pub fn proof(&self, side: Side, says: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.of(side, "proof"), says)
    }

    /// The key of what that side sends.
    pub fn sends(&self, side: Side) -> [u8; BYTES] {
        self.of(side, "messages")
    }

    fn of(&self, side: Side, purpose: &str) -> [u8; BYTES] {
        let context = match side {
            Side::Host => "host",
            Side::Guest => "guest",
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(context.as_bytes()).update(b" ");
        *hasher.update(purpose.as_bytes()).finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTION: &[u8] = &[7; BYTES];

    fn both(host: &[u8], guest: &[u8]) -> [Exchange; 2] {
        [(Side::Host, host), (Side::Guest, guest)].map(|(side, secret)| {
            Exchange::begin(side, &Secret::of(secret)).expect("random numbers")
        })
    }

    fn keys([host, guest]: &[Exchange; 2], beside: [&[u8]; 2]) -> [Key; 2] {
        [
            host.finish(CONNECTION, &guest.public, beside[0])
                .expect("a point"),
            guest
                .finish(CONNECTION, &host.public, beside[1])
                .expect("a point"),
        ]
    }

    #[test]
    fn who_knows_the_secret_has_the_key_and_nobody_else() {
        const SECRET: &[u8] = b"a line of random text";
        let of = |sides: &[Exchange; 2]| keys(sides, [b"rank 1", b"rank 1"]);
        let alike = of(&both(SECRET, SECRET));
        assert_eq!(alike[0].0, alike[1].0);
        let other = of(&both(SECRET, b"a line of other text."));
        assert_ne!(other[0].0, other[1].0, "a guess");
        let differ = keys(&both(SECRET, SECRET), [b"rank 1", b"rank 2"]);
        assert_ne!(differ[0].0, differ[1].0, "another rank");
        assert_ne!(
            of(&both(SECRET, SECRET))[0].0,
            alike[0].0,
            "each has its own"
        );
        // What was heard of one connection fits no other.
        let [host, guest] = both(SECRET, SECRET);
        let of = |connection: &[u8]| {
            host.finish(connection, &guest.public, b"")
                .expect("a point")
                .0
        };
        assert_ne!(of(CONNECTION), of(&[8; BYTES]));
        // Another side's words, sent back, prove nothing.
        let key = &alike[0];
        assert_ne!(key.proof(Side::Host, b""), key.proof(Side::Guest, b""));
        assert_ne!(key.sends(Side::Host), key.sends(Side::Guest));
        assert_ne!(
            key.sends(Side::Host),
            *key.proof(Side::Host, b"").as_bytes()
        );
    }

    /// A rank 0 that is not the job's cannot use what it hears: it knows the number behind the point that it sent,
    /// and made that point by a guess. The proof that it hears fits what it computes only if that guess was right.
    #[test]
    fn a_false_host_can_check_no_guess_but_the_one_it_made() {
        const SECRET: &[u8] = b"a secret to be guessed";
        let guesses: [&[u8]; 2] = [b"not this one, for sure", SECRET];
        for guess in guesses {
            let [host, guest] = both(guess, SECRET);
            let heard = guest
                .finish(CONNECTION, &host.public, b"")
                .expect("a point")
                .proof(Side::Guest, b"");
            let computed = host
                .finish(CONNECTION, &guest.public, b"")
                .expect("a point")
                .proof(Side::Guest, b"");
            assert_eq!(computed == heard, guess == SECRET);
            // Another guess, tried afterwards on what was heard, starts from another point.
            let after = base(&Secret::of(SECRET)) * host.own;
            assert_eq!(after.compress().to_bytes() == host.public, guess == SECRET);
        }
    }

    #[test]
    fn what_is_no_point_or_the_trivial_one_gives_no_key() {
        let [host, _] = both(b"", b"");
        assert!(
            host.finish(CONNECTION, &[0; BYTES], b"").is_none(),
            "the identity"
        );
        assert!(
            host.finish(CONNECTION, &[0xff; BYTES], b"").is_none(),
            "no point"
        );
        assert!(host.finish(CONNECTION, &[1; 3], b"").is_none(), "too short");
    }
}

//! Two sides that know a secret agree on a key, so that nobody learns anything to guess the secret from: CPace, a
//! key exchange by password, over ristretto255.
//!
//! The secret and a random number of this connection give a point of the group. Each side multiplies it by a random
//! number of its own and sends the product; both then multiply what they got. Who does not know the secret starts from
//! another point, so the keys differ, and what was sent says nothing: a stranger, on either side, tries one guess with
//! each connection and gets no other use of it. A key that becomes known later says nothing of other connections.

use super::failed;
use super::secret::{BYTES, Secret, random};
use crate::error::Error;
use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::IsIdentity;

/// Which side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Who was asked to let somebody in.
    Host,
    Guest,
}

/// One side, which has not heard of the other yet.
pub(super) struct Exchange {
    side: Side,
    session: [u8; BYTES],
    own: Scalar,
    /// What the other side gets.
    pub public: [u8; BYTES],
}

impl Exchange {
    /// Begins, in a session that the host has named at random.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the system gives no random numbers.
    pub fn begin(side: Side, secret: &Secret, session: [u8; BYTES]) -> Result<Exchange, Error> {
        let base = RistrettoPoint::from_uniform_bytes(&secret.point(&session));
        let mut wide = [0; 2 * BYTES];
        wide[..BYTES].copy_from_slice(&random()?);
        wide[BYTES..].copy_from_slice(&random()?);
        let own = Scalar::from_bytes_mod_order_wide(&wide);
        let public = base * own;
        // Not by chance: 1 of 2^252.
        if public.is_identity() {
            return Err(failed("a random number is zero", "try again"));
        }
        Ok(Exchange {
            side,
            session,
            own,
            public: public.compress().to_bytes(),
        })
    }

    /// The key, with what the other side sent and what else both must agree on. None if no honest side sends that.
    pub fn finish(&self, theirs: &[u8], beside: &[u8]) -> Option<Key> {
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
        for part in [&self.session[..], beside, host, guest, shared.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Some(Key(*hasher.finalize().as_bytes()))
    }
}

/// What both sides have of a connection, and nobody else.
pub(super) struct Key([u8; BYTES]);

impl Key {
    /// What proves to the other side that this one has the key.
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

    const SESSION: [u8; BYTES] = [7; BYTES];

    fn both(host: &[u8], guest: &[u8]) -> [Exchange; 2] {
        [(Side::Host, host), (Side::Guest, guest)].map(|(side, secret)| {
            Exchange::begin(side, &Secret::of(secret), SESSION).expect("random numbers")
        })
    }

    fn keys([host, guest]: &[Exchange; 2], beside: [&[u8]; 2]) -> [Key; 2] {
        [
            host.finish(&guest.public, beside[0]).expect("a point"),
            guest.finish(&host.public, beside[1]).expect("a point"),
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
        // Another side's words, sent back, prove nothing.
        let key = &alike[0];
        assert_ne!(key.proof(Side::Host, b""), key.proof(Side::Guest, b""));
        assert_ne!(key.sends(Side::Host), key.sends(Side::Guest));
        assert_ne!(
            key.sends(Side::Host),
            *key.proof(Side::Host, b"").as_bytes()
        );
    }

    /// What a rank 0 that is not the job's can do with what it hears: it knows the number behind the point that it sent,
    /// and made that point by a guess. The proof that it hears fits what it computes only if that guess was right.
    #[test]
    fn a_false_host_can_check_no_guess_but_the_one_it_made() {
        const SECRET: &[u8] = b"a secret to be guessed";
        let guesses: [&[u8]; 2] = [b"not this one, for sure", SECRET];
        for guess in guesses {
            let [host, guest] = both(guess, SECRET);
            let heard = guest
                .finish(&host.public, b"")
                .expect("a point")
                .proof(Side::Guest, b"");
            let computed = host
                .finish(&guest.public, b"")
                .expect("a point")
                .proof(Side::Guest, b"");
            assert_eq!(computed == heard, guess == SECRET);
            // Another guess, tried afterwards on what was heard, starts from another point.
            let after =
                RistrettoPoint::from_uniform_bytes(&Secret::of(SECRET).point(&SESSION)) * host.own;
            assert_eq!(after.compress().to_bytes() == host.public, guess == SECRET);
        }
    }

    #[test]
    fn what_is_no_point_or_the_trivial_one_gives_no_key() {
        let [host, _] = both(b"", b"");
        assert!(host.finish(&[0; BYTES], b"").is_none(), "the identity");
        assert!(host.finish(&[0xff; BYTES], b"").is_none(), "no point");
        assert!(host.finish(&[1; 3], b"").is_none(), "too short");
    }
}

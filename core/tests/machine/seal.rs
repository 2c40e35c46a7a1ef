//! Several resources are sealed as one.

use std::future::{Future, pending, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use palisade_core::{Seal, SealError, Token};

#[derive(Clone, Copy)]
enum FakeResource {
    Seals(&'static str),
    Fails(&'static str),
    NeverAnswers,
}

impl Seal for FakeResource {
    type Sealed = (&'static str, Token);

    fn seal(&self, token: Token) -> impl Future<Output = Result<(&'static str, Token), SealError>> + Send {
        let fake = *self;
        async move {
            match fake {
                FakeResource::Seals(name) => ready(Ok((name, token))).await,
                FakeResource::NeverAnswers => pending().await,
                FakeResource::Fails(name) => Err(SealError {
                    resource: name.to_owned(),
                    superseded_by: None,
                    is_retryable: true,
                    source: "the resource failed".into(),
                }),
            }
        }
    }
}

fn token() -> Token {
    Token::new(34).expect("a token")
}

fn polled<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn several_resources_are_sealed_with_one_token_and_returned_in_order() {
    let (a, b) = (FakeResource::Seals("a"), FakeResource::Seals("b"));
    let Poll::Ready(Ok(sealed)) = polled((&a, &b, vec![a, b]).seal(token())) else { panic!("all can be sealed") };
    assert_eq!(sealed, (("a", token()), ("b", token()), vec![("a", token()), ("b", token())]));
    assert!(matches!(polled(Vec::<FakeResource>::new().seal(token())), Poll::Ready(Ok(none)) if none.is_empty()));
}

#[test]
fn a_failed_seal_is_reported_while_another_is_pending() {
    let name = |polled: Poll<Result<(), SealError>>| match polled {
        Poll::Ready(Err(error)) => error.resource,
        other => panic!("{other:?}"),
    };
    let (pending_seal, failing) = (FakeResource::NeverAnswers, FakeResource::Fails("b"));
    assert_eq!(name(polled((pending_seal, failing).seal(token())).map_ok(|_| ())), "b");
    assert_eq!(name(polled((failing, pending_seal).seal(token())).map_ok(|_| ())), "b");
    assert_eq!(name(polled(vec![pending_seal, failing, pending_seal].seal(token())).map_ok(|_| ())), "b");
}

#[test]
fn nothing_is_returned_before_all_are_sealed() {
    let (sealed, pending_seal) = (FakeResource::Seals("a"), FakeResource::NeverAnswers);
    assert!(polled((sealed, pending_seal).seal(token())).is_pending());
    assert!(polled(vec![pending_seal, sealed].seal(token())).is_pending());
}

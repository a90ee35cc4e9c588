"""The errors of subscriptions, as consumers get them."""

from __future__ import annotations

from headgate_api.errors import ConflictError, InvalidInputError, NotFoundError, OverloadedError, UnavailableError


class SubscriptionNotFoundError(NotFoundError):
    """There is no such subscription, or it is not in force yet."""

    code = "subscription-not-found"


class ConsumersQuotaError(OverloadedError):
    """As many consumers of a namespace's subscriptions are connected as its quota allows."""

    code = "consumers-quota"


class ConsumerBusyError(ConflictError):
    """Another consumer has the exclusive subscription."""

    code = "consumer-busy"


class ConsumerReplacedError(ConflictError):
    """The consumer has connected again."""

    code = "consumer-replaced"


class AckIdError(InvalidInputError):
    """An acknowledgement names something that pull cannot have given."""

    code = "ack-id"


class AckNotStoredError(UnavailableError):
    """The disk does not take it: what was acknowledged may be handed out again after a restart."""

    code = "ack-not-stored"


class SeekBusyError(ConflictError):
    """Another seek of the same subscription is under way."""

    code = "seek-busy"


class SeekCancelledError(ConflictError):
    """The seek was cancelled."""

    code = "seek-cancelled"


class PlaceNotFoundError(NotFoundError):
    """No event satisfies the expression of a seek."""

    code = "place-not-found"


class BrokerGoneError(NotFoundError):
    """The broker whose events are searched does not exist any more."""

    code = "broker-gone"

"""Frames to messages and back."""

from __future__ import annotations

from typing import Union

import msgspec

from rayshim.adapters.wire import ask_messages as a
from rayshim.adapters.wire import environment_messages as e
from rayshim.adapters.wire import event_messages as ev
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire import why_messages as w
from rayshim.adapters.wire.metric_messages import ReportMetrics

Message = Union[  # noqa: UP007 (msgspec wants one object)
    m.Hello,
    m.RegisterFunction,
    m.BindLease,
    m.PushTasks,
    m.Results,
    m.StreamItem,
    m.StreamAck,
    m.StealTasks,
    m.StolenTasks,
    m.CancelTask,
    m.Fetch,
    m.Objects,
    m.Borrow,
    m.BorrowAck,
    m.Release,
    m.FreeSegments,
    m.Interrupt,
    m.RequestLease,
    m.LeaseGranted,
    m.LeaseRejected,
    m.CancelLease,
    m.ReturnLease,
    m.ReclaimLease,
    m.LeaseLost,
    m.Blocked,
    m.LogLines,
    m.KillExecutor,
    m.UpdateBacklog,
    m.CreateActor,
    m.ActorCreated,
    m.ActorFailed,
    m.ActorExiting,
    m.Request,
    m.Response,
    m.RegisterActor,
    m.StartActor,
    m.FailActor,
    m.SubscribeActor,
    m.ActorUpdate,
    m.KillActor,
    m.ActorOutOfScope,
    m.Publish,
    m.ObjectsLost,
    m.CopiesMade,
    n.MakeRoom,
    n.RoomMade,
    n.RestoreSegments,
    n.SegmentsRestored,
    n.DiscardSegments,
    n.SegmentsSpilled,
    n.AskHoldings,
    n.Holdings,
    n.PullObject,
    n.ObjectPulled,
    n.UnpinCopies,
    n.FreeCopies,
    n.NodeTable,
    n.WaitReport,
    n.Deadlock,
    n.AskWaits,
    n.JoinNode,
    n.NodeLoad,
    n.PlaceLease,
    n.LeasePlaced,
    n.CancelPlacement,
    n.ShrinkLease,
    n.RelayToExecutor,
    n.JobEnded,
    n.ReserveBundles,
    n.BundlesReserved,
    n.FreeBundles,
    n.LeaveCluster,
    n.MoveRefused,
    n.OwnersDied,
    w.AskWhy,
    w.WhyTold,
    e.PrepareEnvironment,
    e.EnterEnvironment,
    e.EnvironmentEntered,
    a.Ask,
    a.Told,
    ev.TaskEvents,
    ReportMetrics,
]

ENCODER = msgspec.msgpack.Encoder()
DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def as_text(text: str) -> str:
    """A text that messages can have: lone surrogates become escapes.

    Python makes them of the bytes of file names that are no UTF-8, so that the text of
    any error may have some.

    Example:
        >>> as_text("no file " + chr(0xDCFF))
        'no file \\udcff'
    """
    return text.encode("utf-8", "backslashreplace").decode()

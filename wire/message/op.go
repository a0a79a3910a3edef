package message

import "strconv"

// Op names an operation in a [Request].
type Op uint16

// The operations. Numbers are stable. An operation that the receiver does not know is answered with [CodeUnsupported],
// and the connection goes on. 32 to 63 are kept for calls, 64 to 95 for tasks, 96 to 127 for caches, 128 to 159 for
// managed objects, 160 to 191 for streams; 0x8000 and above are free for experiments and mean nothing to anyone else.
const (
	// OpPing answers at once: [Ping], [Pong].
	OpPing Op = 1
	// OpAcquire takes a lease on a published version: [Acquire], [Acquired].
	OpAcquire Op = 2
	// OpRelease gives leases back: [Release], [Released].
	OpRelease Op = 3
	// OpPublish publishes memory of the client: [Publish], [Published].
	OpPublish Op = 4
	// OpWithdraw takes a name off the catalog: [Withdraw], [Withdrawn].
	OpWithdraw Op = 5
	// OpList lists what is published: [List], [Listed].
	OpList Op = 6
	// OpInfo describes one name: [Info], [InfoResult].
	OpInfo Op = 7
	// OpWatch sends an [Event] for each change until [OpUnwatch]: [Watch], [Watching].
	OpWatch Op = 8
	// OpUnwatch ends a watch: [Unwatch], [Unwatched].
	OpUnwatch Op = 9
	// OpDigests answers when the server has computed the digests of a version, where [FeatureDigests] was agreed:
	// [Digests], [Digested].
	OpDigests Op = 10

	// OpCall calls an endpoint: [Call], [Returned].
	OpCall Op = 32
	// OpEndpoints lists the endpoints: [Endpoints], [EndpointsListed].
	OpEndpoints Op = 33
	// OpServerInfo describes the server: an empty body, [ServerInfo].
	OpServerInfo Op = 34
	// OpReturnSlabs gives slabs of results back, where [FeaturePool] was agreed: [ReturnSlabs], [SlabsReturned].
	OpReturnSlabs Op = 35
	// OpOffer offers endpoints whose functions the client runs, where [FeatureOffer] was agreed, and sends an [OfferEvent]
	// for each call of one until [OpUnwatch]: [Offer], [Offering].
	OpOffer Op = 36
	// OpAnswer answers a call that came by an [OfferEvent]: [Answer], [Answered].
	OpAnswer Op = 37

	// OpSubmit starts a call as a task: [Call], [TaskInfo].
	OpSubmit Op = 64
	// OpTask describes a task: [Task], [TaskInfo].
	OpTask Op = 65
	// OpTaskWait answers when the task has finished: [Task], [TaskInfo].
	OpTaskWait Op = 66
	// OpTaskResult fetches the result of a finished task: [Task], [Returned].
	OpTaskResult Op = 67
	// OpTaskCancel cancels a task: [Task], [TaskCancelled].
	OpTaskCancel Op = 68
	// OpTasks lists tasks: [Tasks], [TasksListed].
	OpTasks Op = 69
	// OpTaskWatch sends a [TaskEvent] for each task that there is, and then for each change of one, until [OpUnwatch]:
	// [WatchTasks], [WatchingTasks].
	OpTaskWatch Op = 70

	// OpInvalidateCall drops the cached result of a call: [Call], [Invalidated].
	OpInvalidateCall Op = 96
	// OpInvalidateEndpoint drops all cached results of an endpoint: [InvalidateEndpoint], [Invalidated].
	OpInvalidateEndpoint Op = 97

	// OpObjectInfo describes a managed object: [Object], [ObjectInfo].
	OpObjectInfo Op = 128
	// OpObjectRelease gives references to managed objects back: [ReleaseObjects], [ObjectsReleased].
	OpObjectRelease Op = 129
	// OpObjectWatch sends an [ObjectGone] for each managed object that the server destroys while the session has a
	// reference to it: [WatchObjects], [WatchingObjects]. Asking again moves the events to the new request.
	OpObjectWatch Op = 130
	// OpObjectRefer gives the session one reference more to a managed object: [Object], [ObjectInfo].
	OpObjectRefer Op = 131
	// OpObjects lists managed objects and their holders: [Objects], [ObjectsListed].
	OpObjects Op = 132
	// OpObjectDestroy takes all references to a managed object away, whoever has them: [Object], [ObjectInfo] as it
	// was. It is for the server's own user and root; others are refused with [CodePermissionDenied].
	OpObjectDestroy Op = 133

	// OpStream calls an endpoint whose results come one by one: [Call]; each result is a [StreamItem] in an event
	// frame, and the response, which is empty, is the end.
	OpStream Op = 160
	// OpStreamMore allows the server to send more items: [StreamMore], [StreamMoreDone].
	OpStreamMore Op = 161
)

var opNames = [...]string{
	OpPing: "ping", OpAcquire: "acquire", OpRelease: "release", OpPublish: "publish", OpWithdraw: "withdraw",
	OpList: "list", OpInfo: "info", OpWatch: "watch", OpUnwatch: "unwatch", OpDigests: "digests",
	OpCall: "call", OpEndpoints: "endpoints", OpServerInfo: "server info", OpReturnSlabs: "return slabs", OpOffer: "offer", OpAnswer: "answer",
	OpSubmit: "submit", OpTask: "task", OpTaskWait: "wait for task", OpTaskResult: "task result", OpTaskCancel: "cancel task",
	OpTasks: "tasks", OpTaskWatch: "watch tasks", OpInvalidateCall: "invalidate call", OpInvalidateEndpoint: "invalidate endpoint",
	OpObjectInfo: "object info", OpObjectRelease: "release object",
	OpObjectWatch: "watch objects", OpObjectRefer: "refer to object",
	OpObjects: "objects", OpObjectDestroy: "destroy object", OpStream: "stream", OpStreamMore: "stream more",
}

// String is the name of the operation, or its number in words.
func (o Op) String() string {
	if int(o) < len(opNames) && opNames[o] != "" {
		return opNames[o]
	}
	return "operation " + strconv.Itoa(int(o))
}

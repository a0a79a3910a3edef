package message

import "strconv"

// Op is the number of an operation in a [Request].
type Op uint16

// The operations. Numbers are stable. An unknown operation is answered with [CodeUnsupported], and the connection
// continues. 32 to 63 are reserved for calls, 64 to 95 for tasks, 96 to 127 for caches, 128 to 159 for managed objects,
// 160 to 191 for streams; 0x8000 and above are for private experiments.
const (
	// OpPing is answered at once: [Ping], [Pong].
	OpPing Op = 1
	// OpAcquire takes a lease on a published version: [Acquire], [Acquired].
	OpAcquire Op = 2
	// OpRelease releases leases: [Release], [Released].
	OpRelease Op = 3
	// OpPublish publishes memory of the client: [Publish], [Published].
	OpPublish Op = 4
	// OpWithdraw removes a name from the catalog: [Withdraw], [Withdrawn].
	OpWithdraw Op = 5
	// OpList lists the published names: [List], [Listed].
	OpList Op = 6
	// OpInfo describes one name: [Info], [InfoResult].
	OpInfo Op = 7
	// OpWatch sends an [Event] for each change until [OpUnwatch]: [Watch], [Watching].
	OpWatch Op = 8
	// OpUnwatch ends a watch: [Unwatch], [Unwatched].
	OpUnwatch Op = 9
	// OpDigests is answered when the server has computed the digests of a version, if [FeatureDigests] was agreed:
	// [Digests], [Digested].
	OpDigests Op = 10
	// OpRollback publishes the memory of a superseded version again: [Rollback], [Published].
	OpRollback Op = 11

	// OpCall calls an endpoint: [Call], [Returned].
	OpCall Op = 32
	// OpEndpoints lists the endpoints: [Endpoints], [EndpointsListed].
	OpEndpoints Op = 33
	// OpServerInfo describes the server: an empty body, [ServerInfo].
	OpServerInfo Op = 34
	// OpReturnSlabs returns slabs of results, if [FeaturePool] was agreed: [ReturnSlabs], [SlabsReturned].
	OpReturnSlabs Op = 35
	// OpOffer offers endpoints whose functions the client runs, if [FeatureOffer] was agreed, and sends an [OfferEvent]
	// for each call until [OpUnwatch]: [Offer], [Offering].
	OpOffer Op = 36
	// OpAnswer answers a call of an [OfferEvent]: [Answer], [Answered].
	OpAnswer Op = 37

	// OpSubmit starts a call as a task: [Call], [TaskInfo].
	OpSubmit Op = 64
	// OpTask describes a task: [Task], [TaskInfo].
	OpTask Op = 65
	// OpTaskWait is answered when the task has finished: [Task], [TaskInfo].
	OpTaskWait Op = 66
	// OpTaskResult fetches the result of a finished task: [Task], [Returned].
	OpTaskResult Op = 67
	// OpTaskCancel cancels a task: [Task], [TaskCancelled].
	OpTaskCancel Op = 68
	// OpTasks lists tasks: [Tasks], [TasksListed].
	OpTasks Op = 69
	// OpTaskWatch sends a [TaskEvent] for each existing task and then for each change, until [OpUnwatch]: [WatchTasks],
	// [WatchingTasks].
	OpTaskWatch Op = 70

	// OpInvalidateCall drops the cached result of a call: [Call], [Invalidated].
	OpInvalidateCall Op = 96
	// OpInvalidateEndpoint drops all cached results of an endpoint: [InvalidateEndpoint], [Invalidated].
	OpInvalidateEndpoint Op = 97

	// OpObjectInfo describes a managed object: [Object], [ObjectInfo].
	OpObjectInfo Op = 128
	// OpObjectRelease releases references to managed objects: [ReleaseObjects], [ObjectsReleased].
	OpObjectRelease Op = 129
	// OpObjectWatch sends an [ObjectGone] for each managed object that the server destroys while the session has a
	// reference to it: [WatchObjects], [WatchingObjects]. A session has one such watch; [CodeResourceExhausted] refuses another.
	OpObjectWatch Op = 130
	// OpObjectRefer adds a reference of the session to a managed object: [Object], [ObjectInfo].
	OpObjectRefer Op = 131
	// OpObjects lists managed objects and their holders: [Objects], [ObjectsListed].
	OpObjects Op = 132
	// OpObjectDestroy ends all references of all sessions to a managed object: [Object], [ObjectInfo] before the end.
	// Without a policy, only the server's user and root may do so; others receive [CodePermissionDenied].
	OpObjectDestroy Op = 133

	// OpStream calls an endpoint with a stream of results: [Call]. Each result is a [StreamItem] in an event frame, and
	// the empty response is the end.
	OpStream Op = 160
	// OpStreamMore allows the server to send more items: [StreamMore], [StreamMoreDone].
	OpStreamMore Op = 161
)

var opNames = [...]string{
	OpPing: "ping", OpAcquire: "acquire", OpRelease: "release", OpPublish: "publish", OpWithdraw: "withdraw",
	OpList: "list", OpInfo: "info", OpWatch: "watch", OpUnwatch: "unwatch", OpDigests: "digests", OpRollback: "rollback",
	OpCall: "call", OpEndpoints: "endpoints", OpServerInfo: "server info", OpReturnSlabs: "return slabs", OpOffer: "offer", OpAnswer: "answer",
	OpSubmit: "submit", OpTask: "task", OpTaskWait: "wait for task", OpTaskResult: "task result", OpTaskCancel: "cancel task",
	OpTasks: "tasks", OpTaskWatch: "watch tasks", OpInvalidateCall: "invalidate call", OpInvalidateEndpoint: "invalidate endpoint",
	OpObjectInfo: "object info", OpObjectRelease: "release object",
	OpObjectWatch: "watch objects", OpObjectRefer: "refer to object",
	OpObjects: "objects", OpObjectDestroy: "destroy object", OpStream: "stream", OpStreamMore: "stream more",
}

// Repeatable reports whether a request changes nothing, so that a client may send it again after its answer was lost.
func (o Op) Repeatable() bool {
	switch o {
	case OpPing, OpList, OpInfo, OpDigests, OpEndpoints, OpServerInfo, OpTask, OpTaskWait, OpTasks, OpObjectInfo, OpObjects:
		return true
	}
	return false
}

// String returns the name of the operation, or its number as text.
func (o Op) String() string {
	if int(o) < len(opNames) && opNames[o] != "" {
		return opNames[o]
	}
	return "operation " + strconv.Itoa(int(o))
}

package wire

import "strconv"

// Op names an operation in a [Request].
type Op uint16

// The operations. Numbers are stable. An operation that the receiver does not know is answered with [CodeUnsupported],
// and the connection goes on. 32 to 63 are kept for calls, 64 to 95 for tasks, 96 to 127 for caches, 128 to 159 for managed
// objects, 160 to 191 for streams; 0x8000 and above are free for experiments and mean nothing to anyone else.
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
)

var opNames = [...]string{
	OpPing: "ping", OpAcquire: "acquire", OpRelease: "release", OpPublish: "publish", OpWithdraw: "withdraw",
	OpList: "list", OpInfo: "info", OpWatch: "watch", OpUnwatch: "unwatch",
}

// String is the name of the operation, or its number in words.
func (o Op) String() string {
	if o >= OpPing && int(o) < len(opNames) {
		return opNames[o]
	}
	return "operation " + strconv.Itoa(int(o))
}

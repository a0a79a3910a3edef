//go:build unix

// Package endpointtest contains helpers for the tests of endpoint and the packages below it: child processes with typed
// commands, waiting, sockets, and counts of open resources.
//
// A child is the test binary, started again in a role. A [Role] has a state, which the child creates once, and
// commands. Each command is an [Op] with an argument type and a result type:
//
//	var owner = endpointtest.NewRole("owner", nil, openOwner)
//
//	var publish = endpointtest.NewOp(owner, "publish", func(o *ownerState, name string) (uint64, error) {
//		return o.publish(name)
//	})
//
//	func TestMain(m *testing.M) { endpointtest.Main(m) }
//
//	func TestReader(t *testing.T) {
//		o := owner.Start(t)
//		require.EqualValues(t, 1, publish.Must(o, "model"))
//		o.Kill()
//	}
//
// Roles and commands are package variables because they must exist before TestMain runs.
package endpointtest

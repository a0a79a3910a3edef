//go:build unix

// Package endpointtest has what the tests of endpoint and of the packages below it share: child processes with typed
// commands, waiting, sockets, and counts of what a process has open.
//
// A child is the test binary itself, started again in a role. A [Role] has a state, which the child makes once, and
// commands, each an [Op] with the types of its argument and its result:
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
// Roles and commands are package variables, so that they are there before TestMain.
package endpointtest

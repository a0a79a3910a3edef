package cuda

import "github.com/sharedtensor/sharedtensor/driver/cuda/cu"

// keepHosts makes the graph hold the references to host functions. It releases them if it fails.
func keepHosts(c cu.Context, g cu.Graph, ids []uintptr) error {
	for i, id := range ids {
		if err := retainUserObject(c, g, id); err != nil {
			for _, id := range ids[i:] {
				hostCalls.release(id)
			}
			return err
		}
	}
	return nil
}

// retainUserObject makes the graph, and the executable graphs that will be made from it, hold a reference to an entry of
// hostCalls, which the driver releases with the last of them.
func retainUserObject(c cu.Context, g cu.Graph, id uintptr) error {
	object := new(cu.UserObject)
	err := check("cuUserObjectCreate", c.UserObjectCreate(object, id, hostCalls.drop, 1, cu.USER_OBJECT_NO_DESTRUCTOR_SYNC))
	if err != nil {
		return err
	}
	err = check("cuGraphRetainUserObject", c.GraphRetainUserObject(g, *object, 1, cu.GRAPH_USER_OBJECT_MOVE))
	if err != nil {
		hostCalls.retain(id)                                                                            // the release of the object calls drop, and the caller releases the entry
		_ = freeNow("cuUserObjectRelease", func() cu.Result { return c.UserObjectRelease(*object, 1) }) // best effort
	}
	return err
}

// Retain keeps a resource of the caller, such as memory of another library, until the graph and all executable graphs
// made from it are closed and their launches are done. It then calls release, on a thread of the driver. release must not
// call CUDA. If Retain fails, release is not called. It needs CUDA 11.3.
func (g *Graph) Retain(release func()) error {
	if release == nil {
		return g.dev.opError("retain", invalid("no function"))
	}
	return g.dev.opError("retain", g.call(func(c cu.Context) error {
		if err := hostCalls.callbacks(); err != nil {
			return err
		}
		id := hostCalls.add(hostCall{fn: release, refs: 1})
		err := retainUserObject(c, g.handle, id)
		if err != nil {
			hostCalls.remove(id)
		}
		return err
	}))
}

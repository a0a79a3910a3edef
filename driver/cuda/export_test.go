package cuda

// HostCalls returns the number of Go functions that are kept for the driver.
func HostCalls() int {
	hostCalls.mu.Lock()
	defer hostCalls.mu.Unlock()
	return len(hostCalls.all)
}

// GraphObjects returns the number of objects that the next launch of x uses.
func GraphObjects(x *GraphExec) int { return len(x.objects()) }

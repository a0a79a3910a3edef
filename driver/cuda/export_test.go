package cuda

// HostCalls returns the number of Go functions that are kept for the driver.
func HostCalls() int {
	hostCalls.mu.Lock()
	defer hostCalls.mu.Unlock()
	return len(hostCalls.all)
}

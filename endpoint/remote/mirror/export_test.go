package mirror

// HostID returns the ID of this host in the entries of mirrors.
func HostID() string { return hostID() }

// Package systemd speaks with a service manager: it takes over a socket that was bound for the service, and tells how
// the service stands.
package systemd

// Package systemd implements socket activation and service notifications.
package systemd

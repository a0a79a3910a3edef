package modelwire

import (
	"net/url"
	"strconv"
)

// VersionPath returns the path of a version at a gateway. Version 0 is the newest. Slashes in names are escaped.
func VersionPath(name string, version uint64) string {
	path := "/v1/models/" + url.PathEscape(name)
	if version != 0 {
		path += "@" + strconv.FormatUint(version, 10)
	}
	return path
}

// TensorPath returns the path of a tensor's bytes.
func TensorPath(name string, version uint64, tensor string) string {
	return VersionPath(name, version) + "/tensors/" + url.PathEscape(tensor)
}

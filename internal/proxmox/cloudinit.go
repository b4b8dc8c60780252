// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// SnippetKinds are the files of a cloud-init drive that a snippet can take the place of, as cicustom names them.
var SnippetKinds = []string{"user", "network", "meta", "vendor"}

// ParseSnippets reads the value of cicustom: volumes by their kind.
func ParseSnippets(cicustom string) map[string]string {
	out := map[string]string{}
	for _, property := range ParseProperties(cicustom) {
		if slices.Contains(SnippetKinds, property.Key) {
			out[property.Key] = property.Value
		}
	}
	return out
}

// EncodeSnippets writes the value of cicustom.
func EncodeSnippets(snippets map[string]string) string {
	var p Properties
	for _, kind := range slices.Sorted(maps.Keys(snippets)) {
		p = append(p, Property{Key: kind, Value: snippets[kind]})
	}
	return p.Encode()
}

// EncodeSSHKeys writes the value of sshkeys. Proxmox wants the value itself percent-encoded, whatever the encoding of
// the request, and takes no "+" for a blank.
func EncodeSSHKeys(keys []string) string {
	return strings.ReplaceAll(url.QueryEscape(strings.Join(keys, "\n")), "+", "%20")
}

// CheckSSHKey tells what is wrong with a line of authorized_keys. Proxmox says "SSH public key validation error" to any
// key that ssh-keygen does not take, and that only when the VM is made. The key itself is not in the error.
func CheckSSHKey(line string) error {
	const want = "want a line of authorized_keys, like ssh-ed25519 AAAAC3... me@example.com"
	fields := strings.Fields(line)
	at := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, "AAAA") })
	if at < 1 || strings.ContainsAny(line, "\r\n") {
		return fmt.Errorf("no public key is found; %s", want)
	}
	kind := fields[at-1]
	raw, err := base64.StdEncoding.DecodeString(fields[at])
	if err != nil {
		return fmt.Errorf("the key is not in base64, it may have been cut; %s", want)
	}
	var parts []string
	for len(raw) > 0 {
		if len(raw) < 4 || int64(binary.BigEndian.Uint32(raw)) > int64(len(raw)-4) {
			return fmt.Errorf("the key is not whole, it may have been cut; %s", want)
		}
		size := 4 + int(binary.BigEndian.Uint32(raw))
		parts, raw = append(parts, string(raw[4:size])), raw[size:]
	}
	if len(parts) < 2 || parts[0] != kind {
		return fmt.Errorf("the key is not of the kind %q that stands before it; %s", kind, want)
	}
	return nil
}

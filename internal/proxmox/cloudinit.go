// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// SnippetKinds are the files of a cloud-init drive that a snippet can replace, as in
// cicustom.
var SnippetKinds = []string{"user", "network", "meta", "vendor"}

// ParseSnippets returns the volumes in cicustom by their kind.
func ParseSnippets(cicustom string) map[string]string {
	out := map[string]string{}
	for _, property := range ParseProperties(cicustom) {
		if slices.Contains(SnippetKinds, property.Key) {
			out[property.Key] = property.Value
		}
	}
	return out
}

// EncodeSnippets returns the value of cicustom.
func EncodeSnippets(snippets map[string]string) string {
	var p Properties
	for _, kind := range slices.Sorted(maps.Keys(snippets)) {
		p = append(p, Property{Key: kind, Value: snippets[kind]})
	}
	return p.Encode()
}

// EncodeSSHKeys returns the value of sshkeys. Proxmox requires the value to be
// percent-encoded in every encoding of the request, and does not accept "+" for a blank.
func EncodeSSHKeys(keys []string) string {
	return strings.ReplaceAll(url.QueryEscape(strings.Join(keys, "\n")), "+", "%20")
}

// sshKeyType matches the types of keys that OpenSSH reads.
var sshKeyType = regexp.MustCompile(`^(ssh-(rsa|dss|ed25519)|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)$`)

// CheckSSHKey returns an error if a line is not a valid line of authorized_keys. Proxmox
// reports "SSH public key validation error" for any invalid key, and only when the VM
// is configured. The error does not contain the key.
func CheckSSHKey(line string) error {
	const want = "want a line of authorized_keys, like ssh-ed25519 AAAAC3... me@example.com"
	fields := strings.Fields(line)
	at := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, "AAAA") })
	if at < 1 || strings.ContainsAny(line, "\r\n") {
		return fmt.Errorf("no SSH public key found; %s", want)
	}
	kind := fields[at-1]
	raw, err := base64.StdEncoding.DecodeString(fields[at])
	if err != nil {
		return fmt.Errorf("the SSH key is not valid base64; %s", want)
	}
	var parts []string
	for len(raw) > 0 {
		if len(raw) < 4 || int64(binary.BigEndian.Uint32(raw)) > int64(len(raw)-4) {
			return fmt.Errorf("the SSH key is truncated; %s", want)
		}
		size := 4 + int(binary.BigEndian.Uint32(raw))
		parts, raw = append(parts, string(raw[4:size])), raw[size:]
	}
	switch {
	case len(parts) < 2 || parts[0] != kind:
		return fmt.Errorf("the SSH key's type does not match %q; %s", kind, want)
	case !sshKeyType.MatchString(kind):
		return fmt.Errorf("the SSH key's type %q is unknown; %s", kind, want)
	case kind == "ssh-ed25519" && len(parts[1]) != ed25519.PublicKeySize:
		return fmt.Errorf("the SSH key has %d bytes, want %d; %s", len(parts[1]), ed25519.PublicKeySize, want)
	}
	return nil
}

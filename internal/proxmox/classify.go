// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// subject is the kind of object that a call or task operates on. "Does not exist"
// becomes ErrNotFound only for the subject: a destroy that fails because a storage
// is missing must not be taken for a missing VM.
type subject int

const (
	aboutOther subject = iota
	aboutGuest
	aboutStorage
	aboutPool
	aboutHA
)

// Codes of the proxy in front of a Host's daemons (AnyEvent::HTTP).
const (
	statusConnectFailed = 595 // the Host received nothing
	statusFirstBroken   = 596 // broken or timed out after the connection was established
	statusLastBroken    = 599
)

// classify returns the error of this package for a failed response.
func classify(r response) error {
	text, parameters := r.message()
	switch {
	case r.status == http.StatusUnauthorized:
		return &failure{kind: ErrUnauthorized, text: text}
	case r.status == http.StatusBadRequest:
		return classifyParameters(text, parameters, r.about)
	case r.status == statusConnectFailed:
		return &failure{kind: ErrHostUnreachable, text: text}
	case r.status >= statusFirstBroken && r.status <= statusLastBroken:
		return &failure{kind: brokenKind(r.method, ErrHostUnreachable), text: text}
	case slices.Contains(gatewayStatuses, r.status):
		// Not known of Proxmox, whose daemons may have received the request.
		return &failure{kind: brokenKind(r.method, ErrUnreachable), text: r.statusLine()}
	case r.status == http.StatusForbidden:
		return forbidden(text)
	case r.status >= http.StatusInternalServerError:
		return classifyText(text, r.about)
	}
	// This is another server.
	return &failure{kind: ErrUnreachable, cause: &notProxmoxError{found: r.statusLine()}}
}

// brokenKind returns the kind of an exchange that broke off: the given one for a read,
// ErrUnknownOutcome for a write, which may have taken effect.
func brokenKind(method string, read error) error {
	if method == http.MethodGet {
		return read
	}
	return ErrUnknownOutcome
}

// classifyParameters returns an InvalidError except for the few refused parameters
// that are not an error of the caller.
func classifyParameters(text string, parameters map[string]string, about subject) error {
	for name, value := range parameters {
		switch {
		case name == "upid" && strings.Contains(value, "no such task"),
			name == "storage" && about == aboutStorage && strings.Contains(value, "No such storage"):
			return &failure{kind: ErrNotFound, text: value}
		case strings.HasSuffix(value, "already exists"):
			return &failure{kind: ErrExists, text: value}
		case strings.HasPrefix(value, "Only root may"):
			return &failure{kind: ErrRootOnly, text: name + ": " + value}
		}
	}
	return &InvalidError{Parameters: parameters, Message: text}
}

// rule maps a message of Proxmox to a kind. A rule with a subject applies to that
// subject only.
type rule struct {
	kind    error
	about   subject
	pattern *regexp.Regexp
}

// rules are tried in order; the first that matches applies. The same message can be
// that of an HTTP 500 or the exit status of a task, with prefixes such as "clone
// failed: " or "unable to create VM 100 - ", so most patterns are not anchored.
var rules = []rule{
	{kind: ErrBusy, pattern: regexp.MustCompile(`got no worker upid`)},
	{kind: ErrNoQuorum, pattern: regexp.MustCompile(`no quorum`)},
	// Without quorum pmxcfs is read-only, and a config write fails with that message.
	{kind: ErrNoQuorum, pattern: regexp.MustCompile(`unable to open file '/etc/pve/[^']*' - (Permission denied|Read-only file system)`)},
	{kind: ErrRootOnly, pattern: regexp.MustCompile(`(?i)only root (can|may) `)},

	{kind: ErrNotFound, about: aboutGuest, pattern: regexp.MustCompile(`(?i)configuration file '[^']*(qemu-server|lxc)/\d+\.conf' does not exist`)},
	{kind: ErrNotFound, about: aboutGuest, pattern: regexp.MustCompile(`unable to find configuration file for (VM|CT) \d+ on node`)},
	// A file in the guest. Only calls of the guest agent have this prefix.
	{kind: ErrNotFound, about: aboutGuest, pattern: regexp.MustCompile(`^Agent error: failed to open file '.*No such file or directory`)},
	{kind: ErrNotFound, about: aboutStorage, pattern: regexp.MustCompile(`(storage|volume) '[^']*' does not exist`)},
	{kind: ErrNotFound, about: aboutPool, pattern: regexp.MustCompile(`no such pool '|pool '[^']*' does not exist`)},
	{kind: ErrNotFound, about: aboutHA, pattern: regexp.MustCompile(`no such (resource|ha rule) '|HA rule '[^']*' does not exist|not HA managed`)},
	{kind: ErrNotFound, pattern: regexp.MustCompile(`VM \d+ is not a pool member`)},

	{kind: ErrExists, pattern: regexp.MustCompile(`config file already exists`)},
	{kind: ErrExists, pattern: regexp.MustCompile(`(VM|CT) \d+ already exists`)},
	// pmxcfs refuses a VMID that exists on another Host.
	{kind: ErrExists, pattern: regexp.MustCompile(`/\d+\.conf[^/]*File exists`)},
	// Of the pool in the request. A member of another one "belongs already to pool" it.
	{kind: ErrExists, pattern: regexp.MustCompile(`VM \d+ is already a pool member`)},
	{kind: ErrExists, about: aboutStorage, pattern: regexp.MustCompile(`already exists|refusing to override existing file`)},

	{kind: ErrExists, about: aboutHA, pattern: regexp.MustCompile(`resource ID '[^']*' already defined`)},

	{kind: ErrLocked, pattern: regexp.MustCompile(`can't (lock file|acquire lock)[^;]*(got timeout|timeout)`)},
	{kind: ErrLocked, pattern: regexp.MustCompile(`got lock (request )?timeout|'-locked command timed out`)},
	{kind: ErrLocked, pattern: regexp.MustCompile(`(VM|CT) is locked( \(|$)`)},

	{kind: ErrProtected, pattern: regexp.MustCompile(`protection mode enabled`)},
	{kind: ErrNotRunning, pattern: regexp.MustCompile(`VM \d+ (is )?not running`)},
	{kind: ErrRunning, pattern: regexp.MustCompile(`VM \d+ (is|already) running|if VM is running`)},

	{kind: ErrStorageFull, pattern: regexp.MustCompile(`(?i)no space left on device|(out of|not enough|insufficient)( free)? (disk )?space|disk quota exceeded`)},
	{kind: ErrStorageFull, pattern: regexp.MustCompile(`(?i)free space in (thin )?pool .* reached threshold`)},

	// Not the "checksum mismatch: got ..." of a download.
	{kind: ErrConflict, pattern: regexp.MustCompile(`checksum mismatch \(file change|detected modified configuration`)},
	// A resource that a rule names was removed, or another user created the rule.
	{kind: ErrConflict, about: aboutHA, pattern: regexp.MustCompile(`cannot use unmanaged resource|HA rule '[^']*' already defined`)},

	// The name of a Host that left the Cluster no longer resolves.
	{kind: ErrHostUnreachable, pattern: regexp.MustCompile(`hostname lookup '[^']*' failed|no such cluster node`)},

	{kind: ErrTaskCanceled, pattern: regexp.MustCompile(`interrupted by signal|received interrupt|^got signal`)},
	// The worker died without an exit status.
	{kind: ErrUnknownOutcome, pattern: regexp.MustCompile(`^unexpected status$`)},
}

var permissionPattern = regexp.MustCompile(`Permission check failed \((/[^,\s]*), ([A-Za-z.|]+)`)

// classifyText returns the error for a message of a response or a task.
func classifyText(text string, about subject) error {
	for _, r := range rules {
		if (r.about == aboutOther || r.about == about) && r.pattern.MatchString(text) {
			return &failure{kind: r.kind, text: text}
		}
	}
	if strings.Contains(text, "Permission check failed") {
		return forbidden(text)
	}
	return &failure{kind: ErrFailed, text: text}
}

// forbidden parses "Permission check failed (/vms/100, VM.Clone)". Messages about
// alternatives on several paths, a missing pool or calls that tokens may not make
// contain no path.
func forbidden(text string) error {
	found := permissionPattern.FindStringSubmatch(text)
	if found == nil {
		return &ForbiddenError{Message: text}
	}
	return &ForbiddenError{Path: found[1], Privilege: found[2], Message: text}
}

// oneLine joins the lines of a message, for events and conditions.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

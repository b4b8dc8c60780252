// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// subject is what a call or task is about. "Does not exist" proves something
// only about the subject: a destroy that fails since a storage is gone must not
// read as "the VM is gone".
type subject int

const (
	aboutOther subject = iota
	aboutGuest
	aboutStorage
	aboutPool
)

// answer is a failed HTTP exchange, as far as classification needs it.
type answer struct {
	method string
	about  subject
	status int
	reason string // of the status line: the first line of the message
	body   []byte
}

// Codes that the proxy in front of a Host's daemons makes up (AnyEvent::HTTP).
const (
	statusConnectFailed = 595 // nothing reached the Host
	statusFirstBroken   = 596 // broken or timed out after the connection stood
	statusLastBroken    = 599
)

// classify turns a failed answer into an error of this package.
func classify(a answer) error {
	text, parameters := a.message()
	switch {
	case a.status == http.StatusUnauthorized:
		return &failure{kind: ErrUnauthorized, text: text}
	case a.status == http.StatusBadRequest:
		return classifyParameters(text, parameters, a.about)
	case a.status == statusConnectFailed:
		return &failure{kind: ErrHostUnreachable, text: text}
	case a.status >= statusFirstBroken && a.status <= statusLastBroken:
		return &failure{kind: brokenKind(a.method, ErrHostUnreachable), text: text}
	case a.status == http.StatusBadGateway, a.status == http.StatusServiceUnavailable, a.status == http.StatusGatewayTimeout:
		// Not Proxmox, but a load balancer in front of it.
		return &failure{kind: brokenKind(a.method, ErrUnreachable), text: a.statusLine()}
	case a.status == http.StatusForbidden:
		return forbidden(text)
	case a.status >= http.StatusInternalServerError:
		return classifyText(text, a.about)
	}
	// Proxmox has no 404 and no redirects on the API: somebody else answers.
	return &failure{kind: ErrUnreachable, cause: &notProxmoxError{found: a.statusLine()}}
}

// brokenKind is what a broken exchange means: a read did nothing, a write may have.
func brokenKind(method string, read error) error {
	if method == http.MethodGet {
		return read
	}
	return ErrUnknownOutcome
}

func (a answer) statusLine() string {
	return strings.TrimSpace(strconv.Itoa(a.status) + " " + oneLine(a.reason))
}

// message reads the words of an answer: the body's where it has some (since
// 8.4, in full), else the reason phrase (the first line).
func (a answer) message() (text string, parameters map[string]string) {
	var body struct {
		Message string                     `json:"message"`
		Errors  map[string]json.RawMessage `json:"errors"`
	}
	// Bodies of 401 and 595 are empty, others may come from a load balancer:
	// what is no JSON has nothing to say beyond the reason phrase.
	if json.Unmarshal(a.body, &body) != nil {
		body.Message, body.Errors = "", nil
	}
	for name, raw := range body.Errors {
		if parameters == nil {
			parameters = make(map[string]string, len(body.Errors))
		}
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		parameters[name] = oneLine(value)
	}
	text = oneLine(body.Message)
	if text == "" {
		text = oneLine(a.reason)
	}
	if text == "" {
		text = "status " + strconv.Itoa(a.status)
	}
	return text, parameters
}

// classifyParameters looks for the few refused parameters that are no mistake
// of the caller.
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

// rule maps a text of Proxmox to a kind. A rule with a subject applies to that
// subject only.
type rule struct {
	kind    error
	about   subject
	pattern *regexp.Regexp
}

// rules are tried in turn; the first that matches decides. The same cause can
// come as an HTTP 500 or as the last word of a task, with prefixes such as
// "clone failed: " or "unable to create VM 100 - ", so most are not anchored.
var rules = []rule{
	{kind: ErrBusy, pattern: regexp.MustCompile(`got no worker upid`)},
	{kind: ErrNoQuorum, pattern: regexp.MustCompile(`no quorum`)},
	// Without quorum pmxcfs is read-only, and a config write says just that.
	{kind: ErrNoQuorum, pattern: regexp.MustCompile(`unable to open file '/etc/pve/[^']*' - (Permission denied|Read-only file system)`)},
	{kind: ErrRootOnly, pattern: regexp.MustCompile(`(?i)only root (can|may) `)},

	{kind: ErrNotFound, about: aboutGuest, pattern: regexp.MustCompile(`(?i)configuration file '[^']*(qemu-server|lxc)/\d+\.conf' does not exist`)},
	{kind: ErrNotFound, about: aboutGuest, pattern: regexp.MustCompile(`unable to find configuration file for (VM|CT) \d+ on node`)},
	{kind: ErrNotFound, about: aboutStorage, pattern: regexp.MustCompile(`(storage|volume) '[^']*' does not exist`)},
	{kind: ErrNotFound, about: aboutPool, pattern: regexp.MustCompile(`no such pool '`)},
	{kind: ErrNotFound, pattern: regexp.MustCompile(`VM \d+ is not a pool member`)},

	{kind: ErrExists, pattern: regexp.MustCompile(`config file already exists`)},
	{kind: ErrExists, pattern: regexp.MustCompile(`(VM|CT) \d+ already exists`)},
	// pmxcfs refuses a VMID that exists on another Host.
	{kind: ErrExists, pattern: regexp.MustCompile(`/\d+\.conf[^/]*File exists`)},
	{kind: ErrExists, about: aboutStorage, pattern: regexp.MustCompile(`already exists|refusing to override existing file`)},

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

	// The name of a Host that left the Cluster no longer resolves.
	{kind: ErrHostUnreachable, pattern: regexp.MustCompile(`hostname lookup '[^']*' failed|no such cluster node`)},

	{kind: ErrTaskCancelled, pattern: regexp.MustCompile(`interrupted by signal|received interrupt|^got signal`)},
	// The worker died without a last word.
	{kind: ErrUnknownOutcome, pattern: regexp.MustCompile(`^unexpected status$`)},
}

var permissionPattern = regexp.MustCompile(`Permission check failed \((/[^,\s]*), ([A-Za-z.|]+)`)

// classifyText finds the kind of a message, of an answer or of a task.
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

// forbidden reads "Permission check failed (/vms/100, VM.Clone)". Alternatives
// on several paths, a missing pool and calls closed to tokens name no path.
func forbidden(text string) error {
	found := permissionPattern.FindStringSubmatch(text)
	if found == nil {
		return &ForbiddenError{Message: text}
	}
	return &ForbiddenError{Path: found[1], Privilege: found[2], Message: text}
}

// oneLine joins the lines of a message: it ends up in events and conditions.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

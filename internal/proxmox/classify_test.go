// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// kindName returns the kind of an error. The test fails unless it has exactly one.
func kindName(t *testing.T, err error) string {
	t.Helper()
	var (
		names     []string
		forbidden *ForbiddenError
		invalid   *InvalidError
	)
	for _, kind := range []error{
		ErrNotFound, ErrExists, ErrLocked, ErrBusy, ErrRunning, ErrNotRunning, ErrProtected, ErrRootOnly, ErrStorageFull, ErrConflict,
		ErrNoQuorum, ErrUnauthorized, ErrHostUnreachable, ErrUnreachable, ErrUnknownOutcome, ErrTaskCanceled, ErrFailed,
	} {
		if errors.Is(err, kind) {
			names = append(names, kind.Error())
		}
	}
	if errors.As(err, &forbidden) {
		names = append(names, "forbidden")
	}
	if errors.As(err, &invalid) {
		names = append(names, "invalid")
	}
	if len(names) != 1 {
		t.Errorf("%v: found kinds %q, want exactly one", err, names)
		return ""
	}
	return names[0]
}

// The texts are messages of Proxmox VE in responses and exit statuses of tasks.
func TestClassifyText(t *testing.T) {
	t.Parallel()
	for about, texts := range map[subject]map[string]error{
		aboutGuest: {
			"Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist":                       ErrNotFound,
			"unable to find configuration file for VM 8888 on node 'pve1'":                              ErrNotFound,
			"Agent error: failed to open file '/run/a' (mode: 'r'): No such file or directory":          ErrNotFound,
			"unable to create VM 200: config file already exists":                                       ErrExists,
			"unable to create VM 303 - VM 303 already exists on node 'pve1'":                            ErrExists,
			"close (rename) atomic file '/etc/pve/nodes/pve1/qemu-server/101.conf' failed: File exists": ErrExists,
			"update pools failed: VM 303 is already a pool member":                                      ErrExists,
			"update pools failed: VM 303 belongs already to pool 'p1' and 'allow-move' is not set":      ErrFailed,
			"VM is locked (backup)": ErrLocked,
			"can't lock file '/var/lock/qemu-server/lock-303.conf' - got timeout":                    ErrLocked,
			"clone failed: cfs-lock 'storage-ceph' error: got lock request timeout":                  ErrLocked,
			"'storage-ceph'-locked command timed out - aborting":                                     ErrLocked,
			"can't add VM 100 to pool 'p': cfs-lock 'file-user_cfg' error: got lock request timeout": ErrLocked,
			"got no worker upid - start worker failed":                                               ErrBusy,
			"VM 200 is running - destroy failed":                                                     ErrRunning,
			"VM 200 already running":                                                                 ErrRunning,
			"you can't convert a VM to template if VM is running":                                    ErrRunning,
			"VM 100 not running":                                                                              ErrNotRunning,
			"VM 100 is not running":                                                                           ErrNotRunning,
			"can't remove VM 201 - protection mode enabled":                                                   ErrProtected,
			"only root can set 'affinity' config":                                                             ErrRootOnly,
			"only root can modify 'serial0' config for real devices":                                          ErrRootOnly,
			"only root can set 'hostpci0' config for non-mapped devices":                                      ErrRootOnly,
			"Only root can pass arbitrary filesystem paths.":                                                  ErrRootOnly,
			"checksum mismatch (file change by other user?)":                                                  ErrConflict,
			"detected modified configuration - file changed by other user? Try again.":                        ErrConflict,
			"cluster not ready - no quorum?":                                                                  ErrNoQuorum,
			"cfs-lock 'firewall-vm-300' error: no quorum!":                                                    ErrNoQuorum,
			"unable to open file '/etc/pve/nodes/pve9a/qemu-server/300.conf.tmp.1234' - Permission denied":    ErrNoQuorum,
			"hostname lookup 'pve9' failed - failed to get address info for: pve9: Name or service not known": ErrHostUnreachable,
			"no such cluster node 'pve9'":                                                                     ErrHostUnreachable,
			"clone failed: copy failed: command '/usr/bin/qemu-img convert' failed: error while writing: No space left on device": ErrStorageFull,
			"clone failed: lvcreate 'pve/vm-101-disk-0' error: Volume group \"pve\" has insufficient free space (10 extents)":     ErrStorageFull,
			"zfs error: cannot create 'rpool/data/vm-101-disk-0': out of space":                                                   ErrStorageFull,
			"lvcreate snapshot error: Cannot create new thin volume, free space in thin pool pve/data reached threshold.":         ErrStorageFull,
			"clone failed: interrupted by signal":              ErrTaskCanceled,
			"received interrupt":                               ErrTaskCanceled,
			"unexpected status":                                ErrUnknownOutcome,
			"start failed: QEMU exited with code 1":            ErrFailed,
			"bridge 'vmbr7' does not exist":                    ErrFailed,
			"storage 'nostore' does not exist":                 ErrFailed,
			"volume 'local:snippets/none.yaml' does not exist": ErrFailed,
			"snapshot 's1' does not exist":                     ErrFailed,
			"base volume 'local:9001/base-9001-disk-0.qcow2' is still in use by linked cloned":                                     ErrFailed,
			"you can't start a vm if it's a template":                                                                              ErrFailed,
			"VM quit/powerdown failed - got timeout":                                                                               ErrFailed,
			"MAX 2 vcpus allowed per VM on this node":                                                                              ErrFailed,
			"checksum mismatch: got 'da9f' != expect '0000'":                                                                       ErrFailed,
			"QEMU guest agent is not running":                                                                                      ErrFailed,
			"parameter 'storage' not allowed for linked clones":                                                                    ErrFailed,
			"can't clone VM to node 'pve9b' (VM uses local storage)":                                                               ErrFailed,
			"Linked clone feature is not supported for 'lvm:base-100-disk-0' (scsi0)":                                              ErrFailed,
			"disk image '/var/lib/vz/images/999/vm-999-disk-0.qcow2' already exists":                                               ErrFailed,
			"unable to remove VM 303 - used in HA resources and purge parameter not set.":                                          ErrFailed,
			"malformed JSON string, neither tag, array, object, number, string or atom, at character offset 0 (before \"(end of\"": ErrFailed,
			"": ErrFailed,
		},
		aboutStorage: {
			"storage 'nostore' does not exist":                                           ErrNotFound,
			"volume 'local:iso/none.iso' does not exist":                                 ErrNotFound,
			"refusing to override existing file '/var/lib/vz/template/iso/tiny.iso'":     ErrExists,
			"disk image '/var/lib/vz/images/999/vm-999-disk-0.qcow2' already exists":     ErrExists,
			"Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist":        ErrFailed,
			"can't lock file '/var/lock/pve-manager/pve-storage-local' - got timeout":    ErrLocked,
			"import failed: cp: error writing '/mnt/x.iso': No space left on device":     ErrStorageFull,
			"download failed: exit code 8":                                               ErrFailed,
			"upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1317.":     ErrFailed,
			"unable to open file '/var/lib/vz/template/iso/x.iso' - Permission denied":   ErrFailed,
			"cannot unlink: Read-only file system (storage 'nfs' is not online)":         ErrFailed,
			"cfs-lock 'storage-nfs' error: got lock request timeout":                     ErrLocked,
			"can't activate storage 'nfs' - directory '/mnt/pve/nfs' does not exist yet": ErrFailed,
		},
		// No other object has the same messages.
		aboutHA: {
			"no such resource 'vm:300'":                                                      ErrNotFound,
			"cannot delete service 'vm:300', not HA managed!":                                ErrNotFound,
			"resource 'vm:300' is not HA managed":                                            ErrNotFound,
			"no such ha rule 'apart'":                                                        ErrNotFound,
			"update HA rules failed: HA rule 'apart' does not exist":                         ErrNotFound,
			"create resource failed: resource ID 'vm:300' already defined":                   ErrExists,
			"create ha rule failed: HA rule 'apart' already defined":                         ErrConflict,
			"update HA rules failed: cannot use unmanaged resource(s) vm:300.":               ErrConflict,
			"update HA rules failed: detected modified configuration - file changed by user": ErrConflict,
			"service 'vm:300' in error state, must be disabled and fixed first":              ErrFailed,
		},
	} {
		for text, want := range texts {
			err := classifyText(text, about)
			NewWithT(t).Expect(err).To(MatchError(want), text)
			kindName(t, err)
		}
	}
}

func TestClassifyForbidden(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for text, want := range map[string]ForbiddenError{
		"Permission check failed (/vms/9001, VM.Clone)":                              {Path: "/vms/9001", Privilege: "VM.Clone"},
		"Permission check failed (/, Sys.Modify)":                                    {Path: "/", Privilege: "Sys.Modify"},
		"Permission check failed (/sdn/zones/localnetwork/vmbr0/7, SDN.Use)":         {Path: "/sdn/zones/localnetwork/vmbr0/7", Privilege: "SDN.Use"},
		"Permission check failed (/, Sys.Modify for modifying tag 'x')":              {Path: "/", Privilege: "Sys.Modify"},
		"Permission check failed (/vms/2, VM.GuestAgent.Audit|VM.Monitor)":           {Path: "/vms/2", Privilege: "VM.GuestAgent.Audit|VM.Monitor"},
		"Permission check failed":                                                    {},
		"Permission check failed (pool 'nopool' does not exist)":                     {},
		"Permission check failed (user != root@pam)":                                 {},
		"Permission check failed (URI '/access/ticket' not available with API token": {},
	} {
		err := classify(response{method: http.MethodPost, status: http.StatusForbidden, reason: text})
		want.Message = text
		g.Expect(err).To(And(Equal(&want), MatchError(ContainSubstring(text))))
	}
	task := TaskStatus{UPID: "UPID:pve1:00000001:00000001:00000001:qmcreate:341:a@pve:", Exit: "unable to create VM 341 - 403 Permission check failed (/, Sys.Modify for modifying tag 'prod')"}
	var found *ForbiddenError
	g.Expect(errors.As(task.Err(), &found)).To(BeTrue())
	g.Expect(found.Privilege).To(Equal("Sys.Modify"))
}

func TestClassifyParameters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		about subject
		body  string
		want  string
	}{
		"unknown_task":            {aboutOther, `{"errors":{"upid":"no such task"}}`, ErrNotFound.Error()},
		"bad_upid":                {aboutOther, `{"errors":{"upid":"unable to parse worker upid"}}`, "invalid"},
		"taken_VMID":              {aboutOther, `{"errors":{"vmid":"VM 303 already exists"}}`, ErrExists.Error()},
		"unknown_storage":         {aboutStorage, `{"errors":{"storage":"No such storage."}}`, ErrNotFound.Error()},
		"unknown_storage_of_a_VM": {aboutGuest, `{"errors":{"storage":"No such storage."}}`, "invalid"},
		"root_only":               {aboutGuest, `{"errors":{"skiplock":"Only root may use this option."}}`, ErrRootOnly.Error()},
		"bad_value":               {aboutGuest, `{"errors":{"cores":"value must have a minimum value of 1"}}`, "invalid"},
		"error_that_is_no_text":   {aboutGuest, `{"errors":{"cores":{"a":1}}}`, "invalid"},
		"no_errors":               {aboutGuest, `{"data":null}`, "invalid"},
		"no_JSON":                 {aboutGuest, `<html>`, "invalid"},
		"errors_that_are_no_map":  {aboutGuest, `{"errors":[1]}`, "invalid"},
	} {
		err := classify(response{method: http.MethodPut, about: test.about, status: 400, reason: "Parameter verification failed.", body: []byte(test.body)})
		NewWithT(t).Expect(kindName(t, err)).To(Equal(test.want), name)
	}
}

func TestClassifyStatus(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method string
		status int
		want   error
	}{
		{http.MethodGet, 401, ErrUnauthorized}, {http.MethodPost, 401, ErrUnauthorized},
		{http.MethodGet, 595, ErrHostUnreachable}, {http.MethodPost, 595, ErrHostUnreachable},
		{http.MethodGet, 596, ErrHostUnreachable}, {http.MethodPost, 596, ErrUnknownOutcome},
		{http.MethodGet, 597, ErrHostUnreachable}, {http.MethodPut, 597, ErrUnknownOutcome},
		{http.MethodGet, 599, ErrHostUnreachable}, {http.MethodDelete, 599, ErrUnknownOutcome},
		{http.MethodGet, 502, ErrUnreachable}, {http.MethodPost, 502, ErrUnknownOutcome},
		{http.MethodGet, 503, ErrUnreachable}, {http.MethodPost, 504, ErrUnknownOutcome},
		{http.MethodGet, 404, ErrUnreachable}, {http.MethodGet, 301, ErrUnreachable},
		{http.MethodGet, 501, ErrFailed}, {http.MethodPost, 506, ErrFailed},
	} {
		err := classify(response{method: test.method, status: test.status})
		NewWithT(t).Expect(err).To(MatchError(test.want), "%s %d", test.method, test.status)
		kindName(t, err)
	}
}

func TestTaskStatus(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for _, s := range []TaskStatus{{Exit: "OK"}, {Exit: "WARNINGS: 2"}} {
		g.Expect(s).To(And(HaveField("Succeeded()", true), HaveField("Err()", BeNil())))
	}
	g.Expect(TaskStatus{Running: true}).To(And(HaveField("Succeeded()", false), HaveField("Err()", BeNil())))
	for _, s := range []TaskStatus{{Exit: ""}, {Exit: "WARNINGS: none"}, {Exit: "command failed: OK"}} {
		g.Expect(s).To(And(HaveField("Succeeded()", false), HaveField("Err()", HaveOccurred())))
	}
	// A destroy that fails for a missing storage does not mean that the VM is missing.
	destroy := TaskStatus{UPID: "UPID:pve1:00000001:00000001:00000001:qmdestroy:200:a@pve:", Exit: "storage 'nostore' does not exist"}
	g.Expect(destroy.Err()).To(MatchError(ErrFailed))
	start := TaskStatus{UPID: "UPID:pve1:00000001:00000001:00000001:qmstart:200:a@pve:", Exit: "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist"}
	g.Expect(start.Err()).To(MatchError(ErrNotFound))
}

// exchange is a recorded request with its response.
type exchange struct {
	Method string          `json:"method"`
	Path   string          `json:"path"`
	Status int             `json:"status"`
	Reason string          `json:"reason"`
	Body   json.RawMessage `json:"body"`
}

func recordedExchanges(t *testing.T) []exchange {
	t.Helper()
	g := NewWithT(t)
	reference := os.Getenv("PVE_REFERENCE")
	if reference == "" {
		reference = filepath.Join("..", "..", "..", "shared", "reference")
	}
	file, err := os.Open(filepath.Join(reference, "pve-traces.jsonl"))
	if err != nil {
		t.Skipf("SKIPPED: no recorded traffic of a running Proxmox VE (%v); set PVE_REFERENCE to the directory with pve-traces.jsonl", err)
	}
	defer func() { _ = file.Close() }()
	var all []exchange
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e exchange
		g.Expect(json.Unmarshal(scanner.Bytes(), &e)).To(Succeed(), "record %d", len(all)+1)
		var text string // some bodies were recorded as text
		if json.Unmarshal(e.Body, &text) == nil {
			e.Body = json.RawMessage(text)
		}
		all = append(all, e)
	}
	g.Expect(scanner.Err()).To(Succeed())
	return all
}

func (e exchange) about() subject {
	switch {
	case strings.Contains(e.Path, "/qemu/"):
		return aboutGuest
	case strings.Contains(e.Path, "/storage/"):
		return aboutStorage
	}
	return aboutOther
}

// Every recorded error of running 8.4 and 9.2 APIs has exactly one kind, which matches its status. So does every recorded exit
// status of a task.
func TestClassifyRecorded(t *testing.T) {
	t.Parallel()
	g, counts := NewWithT(t), map[string]int{}
	for _, e := range recordedExchanges(t) {
		if e.Status >= 400 {
			err := classify(response{method: e.Method, about: e.about(), status: e.Status, reason: e.Reason, body: e.Body})
			kind := kindName(t, err)
			counts[kind]++
			if expected := map[int][]string{
				400: {"invalid", ErrNotFound.Error(), ErrExists.Error(), ErrRootOnly.Error()},
				401: {ErrUnauthorized.Error()}, 403: {"forbidden"}, 501: {ErrFailed.Error()}, 595: {ErrHostUnreachable.Error()},
			}[e.Status]; expected != nil {
				g.Expect(expected).To(ContainElement(kind), "%s %s %d %s", e.Method, e.Path, e.Status, e.Reason)
			}
			if e.Status != 400 {
				g.Expect(err).To(MatchError(ContainSubstring(strings.TrimSpace(e.Reason))))
			}
		}
		var body struct {
			Data taskRow `json:"data"`
		}
		if json.Unmarshal(e.Body, &body) != nil || body.Data.ExitStatus == "" {
			continue
		}
		status := body.Data.status()
		status.Exit = body.Data.ExitStatus
		g.Expect([]any{status.UPID.Valid(), status.UPID.Kind(), status.UPID.ID()}).To(Equal([]any{true, status.Type, status.ID}))
		g.Expect(status.UPID.Started()).To(BeTemporally("==", status.Started))
		if err := status.Err(); err != nil {
			kindName(t, fmt.Errorf("%s: %w", status.Type, err))
		}
	}
	g.Expect(counts).To(And(HaveKey(ErrNotFound.Error()), HaveKey(ErrLocked.Error()), HaveKey("forbidden")))
}

func FuzzClassify(f *testing.F) {
	f.Add("GET", 500, "VM is locked (backup)", `{"data":null,"message":"x\n"}`)
	f.Add("POST", 400, "Parameter verification failed.", `{"errors":{"upid":"no such task"}}`)
	f.Add("PUT", 403, "Permission check failed (/vms/1, VM.Clone)", ``)
	f.Fuzz(func(t *testing.T, method string, status int, reason, body string) {
		for _, about := range []subject{aboutOther, aboutGuest, aboutStorage} {
			err := classify(response{method: method, about: about, status: status, reason: reason, body: []byte(body)})
			kindName(t, err)
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("more than one line: %q", err)
			}
		}
	})
}

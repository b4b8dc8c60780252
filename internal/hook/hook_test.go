// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

const vmid = 20001

// machine is a host whose file system is a temporary directory.
type machine struct {
	*testing.T
	Host
	log    *bytes.Buffer
	pinned map[int]int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{T: t, log: &bytes.Buffer{}, pinned: map[int]int{}}
	m.Host = Host{
		Root: t.TempDir(), Owner: uint32(os.Getuid()), Timeout: 10 * time.Second, Log: m.log,
		Affinity: func(thread, cpu int) error { m.pinned[thread] = cpu; return nil },
	}
	m.write("/sys/devices/system/cpu/online", "0-7\n", 0o644)
	m.write(fmt.Sprintf("/run/qemu-server/%d.pid", vmid), "4242\n", 0o644)
	for thread, name := range map[int]string{4242: "kvm", 4243: "CPU 0/KVM", 4244: "CPU 1/KVM", 4245: "vnc_worker"} {
		m.write(fmt.Sprintf("/proc/4242/task/%d/comm", thread), name+"\n", 0o644)
	}
	return m
}

func (m *machine) write(path, content string, mode os.FileMode) {
	m.Helper()
	path = m.path(path)
	g := NewWithT(m)
	g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	syscall.ForkLock.RLock() // a child of another test that inherits the open file makes its exec fail: text file busy
	err := os.WriteFile(path, []byte(content), mode)
	syscall.ForkLock.RUnlock()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Chmod(path, mode)).To(Succeed(), "independent of the umask")
}

// vm writes a VM's configuration as Proxmox does, with text of a user around the mark.
func (m *machine) vm(mark ownership.Mark) {
	m.Helper()
	notes := mark.Notes("made by hand: 100 % ours") + "more words\n"
	m.write(fmt.Sprintf("/etc/pve/qemu-server/%d.conf", vmid), confOf(notes), 0o640)
}

// confOf returns a configuration file with these notes, as Proxmox writes it.
func confOf(notes string) string {
	var b strings.Builder
	for line := range strings.Lines(notes) {
		line = strings.ReplaceAll(strings.ReplaceAll(line, "%", "%25"), ":", "%3A")
		b.WriteString("#" + strings.TrimSuffix(line, "\n") + "\n")
	}
	b.WriteString("cores: 2\nsockets: 1\nhookscript: local:snippets/pve-hook\n[PENDING]\ncores: 8\n")
	return b.String()
}

// script installs a script.
func (m *machine) script(name, body string) {
	m.Helper()
	m.write(scriptDir+"/"+name, "#!/bin/sh\n"+body+"\n", 0o755)
}

// owned returns the mark of a VM of ours.
func owned(mark ownership.Mark) ownership.Mark {
	mark.VMID, mark.ClaimUID, mark.KubeCluster = vmid, "claim", "cluster"
	return mark
}

func (m *machine) run(phase string) error {
	return m.Host.Run(m.Context(), []string{fmt.Sprint(vmid), phase})
}

func TestScriptsOrder(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	m := newMachine(t)
	m.script("b-first", `echo "first $1 $2 ${HOME:-nothing}"`)
	m.script("a-second", `echo "second $2"`)
	m.script("not-named", `echo never`)
	m.vm(owned(ownership.Mark{Hooks: []string{"b-first", "a-second"}}))
	for _, phase := range phases {
		m.log.Reset()
		g.Expect(m.run(phase)).To(Succeed())
		want := fmt.Sprintf("first %d %s nothing\npve-hook: %s: b-first: done\nsecond %s\npve-hook: %s: a-second: done\n", vmid, phase, phase, phase, phase)
		g.Expect(m.log.String()).To(Equal(want))
	}
}

func TestScriptsNotTrusted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hook    string
		prepare func(*machine)
		want    string
	}{
		"path":               {"../../bin/sh", nil, "is not a valid script name"},
		"absolute_path":      {"/bin/sh", nil, "is not a valid script name"},
		"option":             {"-rf", nil, "is not a valid script name"},
		"nothing":            {"", nil, "is not a valid script name"},
		"command":            {"a;reboot", nil, "is not a valid script name"},
		"no_such_script":     {"absent", nil, "no such file"},
		"link":               {"link", func(m *machine) { _ = os.Symlink("/bin/sh", m.path(scriptDir+"/link")) }, "neither a regular file"},
		"directory":          {"dir", func(m *machine) { _ = os.Mkdir(m.path(scriptDir+"/dir"), 0o755) }, "neither a regular file"},
		"writable_by_others": {"good", func(m *machine) { _ = os.Chmod(m.path(scriptDir+"/good"), 0o777) }, "is writable by users other than root"},
		"not_executable":     {"good", func(m *machine) { _ = os.Chmod(m.path(scriptDir+"/good"), 0o644) }, "is not executable"},
		"other_owner":        {"good", func(m *machine) { m.Owner++ }, "is not owned by root"},
		"writable_directory": {"good", func(m *machine) { _ = os.Chmod(m.path(scriptDir), 0o777) }, "is writable by users other than root"},
		"failed_script":      {"fails", func(m *machine) { m.script("fails", "exit 3") }, "exit status 3"},
		"timeout":            {"slow", func(m *machine) { m.script("slow", "sleep 60 & sleep 60"); m.Timeout = 50 * time.Millisecond }, "was killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			m := newMachine(t)
			m.script("good", "echo ran")
			if c.prepare != nil {
				c.prepare(m)
			}
			m.vm(owned(ownership.Mark{Hooks: []string{c.hook, "good"}}))
			g.Expect(m.run(preStart)).To(MatchError(ContainSubstring(c.want)))
			g.Expect(m.log.String()).NotTo(ContainSubstring("ran"), "ran the next script although the start failed")
		})
	}
}

// After the start a failure is returned, and the other scripts still run.
func TestScriptsFailureAfterStart(t *testing.T) {
	t.Parallel()
	g, m := NewWithT(t), newMachine(t)
	m.script("fails", "exit 1")
	m.script("good", "echo ran")
	m.vm(owned(ownership.Mark{Hooks: []string{"fails", "good"}}))
	g.Expect(m.run("post-stop")).NotTo(Succeed())
	g.Expect(m.log.String()).To(ContainSubstring("ran"))
}

func TestRunGuestNotOwned(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]ownership.Mark{
		"copy":     {VMID: vmid + 1, ClaimUID: "claim", KubeCluster: "cluster", Hooks: []string{"good"}},
		"template": {VMID: vmid, TemplateUID: "t", KubeCluster: "cluster", Hooks: []string{"good"}},
	} {
		g, m := NewWithT(t), newMachine(t)
		m.script("good", "echo ran")
		m.vm(mark)
		g.Expect(m.run(preStart)).To(Succeed(), name)
		g.Expect(m.log.String()).To(BeEmpty(), name)
	}
}

func TestPin(t *testing.T) {
	t.Parallel()
	g, m := NewWithT(t), newMachine(t)
	m.Name = "pve2"
	m.vm(owned(ownership.Mark{CPUs: "2-3,6", Pin: []int{6, 2}, Host: "pve2"}))
	g.Expect(m.run(preStart)).To(Succeed())
	g.Expect(m.pinned).To(BeEmpty())
	g.Expect(m.run(postStart)).To(Succeed())
	g.Expect(m.pinned).To(Equal(map[int]int{4243: 6, 4244: 2}))

	// HA and offline migrations start a VM on another host, where its CPUs may belong to another VM.
	clear(m.pinned)
	m.vm(owned(ownership.Mark{CPUs: "2-3", Pin: []int{2, 3}, Host: "pve1"}))
	g.Expect(m.run(postStart)).To(Succeed())
	g.Expect(m.pinned).To(BeEmpty())
}

// A live migration starts the VM on the target before its configuration is there.
func TestMigration(t *testing.T) {
	t.Parallel()
	g, m := NewWithT(t), newMachine(t)
	m.script("a", `echo done`)
	mark := owned(ownership.Mark{Hooks: []string{"a"}, Pin: []int{2, 3}})
	m.write(fmt.Sprintf("/etc/pve/nodes/pve1/qemu-server/%d.conf", vmid), confOf(mark.Notes("")), 0o640)
	for _, phase := range []string{preStart, postStart} {
		m.log.Reset()
		g.Expect(m.run(phase)).To(Succeed(), phase)
		g.Expect(m.log.String()).To(ContainSubstring("a: done"), phase)
	}
	g.Expect(m.pinned).To(BeEmpty())
	g.Expect(m.log.String()).To(ContainSubstring("migrated from host pve1: its vCPUs are not pinned"))
}

func TestPinInvalid(t *testing.T) {
	t.Parallel()
	for want, mark := range map[string]ownership.Mark{
		"the notes list 1 CPUs, the VM has 2 vCPUs":        {CPUs: "2", Pin: []int{2}},
		"CPU 4 is not one of the VM's dedicated CPUs, 2-3": {CPUs: "2-3", Pin: []int{2, 4}},
		"CPU 2 is listed twice":                            {CPUs: "2-3", Pin: []int{2, 2}},
		"the host has no CPU 9 online":                     {CPUs: "8-9", Pin: []int{9, 8}},
		`found "all", want a list of CPUs`:                 {CPUs: "all", Pin: []int{2, 3}},
	} {
		g, m := NewWithT(t), newMachine(t)
		m.vm(owned(mark))
		g.Expect(m.run(postStart)).To(MatchError(ContainSubstring(want)))
		g.Expect(m.pinned).To(BeEmpty())
	}
}

func TestRunArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"20001"}, {"x", preStart}, {"1", preStart}, {"20001", "started"}, {"20001", preStart, "more"}} {
		NewWithT(t).Expect(newMachine(t).Host.Run(t.Context(), args)).To(MatchError(ContainSubstring("want")), "%v", args)
	}
}

func FuzzConf(f *testing.F) {
	f.Add("#a%3A\ncores: 2\n[snap]\ncores: 4\n")
	f.Add("cores: 99999999999999999999\n#%zz\nvcpus: -1")
	f.Fuzz(func(t *testing.T, content string) {
		c := parseConf(content)
		if m, ok := c.mark(vmid); ok && m.VMID != vmid {
			t.Errorf("accepted the mark of VM %d", m.VMID)
		}
	})
}

// The notes in the file are those that the controller reads by the API.
func FuzzConfNotes(f *testing.F) {
	f.Add(owned(ownership.Mark{}).Notes("100 % ours: [a]"))
	f.Add("#\n[snap]\n\ncores: 3\n")
	f.Fuzz(func(t *testing.T, notes string) {
		notes = strings.TrimRight(notes, "\n") // Proxmox does the same
		c := parseConf(confOf(notes))
		if c.notes != notes || c.vcpus != 2 {
			t.Errorf("%q was read as %q with %d vCPUs", notes, c.notes, c.vcpus)
		}
	})
}

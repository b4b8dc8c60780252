// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockFile marks a directory as kubeplane's and is locked while a plane lives in it.
const lockFile = "kubeplane.lock"

// layout is the structure of a plane's directory.
type layout string

func (l layout) path(elements ...string) string {
	return filepath.Join(append([]string{string(l)}, elements...)...)
}

func (l layout) pki(file ...string) string {
	return l.path(append([]string{"pki"}, file...)...)
}

func (l layout) adminKubeconfig() string       { return l.path("kubeconfig") }
func (l layout) kubeconfig(name string) string { return l.path(name + ".kubeconfig") }
func (l layout) etcdData() string              { return l.path("etcd") }
func (l layout) logs() string                  { return l.path("logs") }
func (l layout) log(component string) string   { return l.path("logs", component+".log") }
func (l layout) auditPolicy() string           { return l.path("audit-policy.yaml") }
func (l layout) auditLog() string              { return l.path("logs", "audit.log") }

// home is the directory of one plane, held under a lock.
type home struct {
	layout
	lock      *os.File
	temporary bool
}

// openHome takes dir, or a new temporary directory if dir is empty. What an earlier plane left there is
// removed: its certificates and its data belong together, and half of them would be worse than none.
func openHome(dir string) (*home, error) {
	temporary := dir == ""
	var err error
	if temporary {
		dir, err = os.MkdirTemp("", "kubeplane-")
	} else if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the plane's directory: %w", err)
	}
	if err := refuseForeign(dir); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	h := &home{layout: layout(dir), lock: lock, temporary: temporary}
	if err := errors.Join(h.clear(), os.MkdirAll(h.logs(), 0o700)); err != nil {
		return nil, errors.Join(fmt.Errorf("preparing the plane's directory: %w", err), h.close(false))
	}
	return h, nil
}

// refuseForeign rejects a directory that holds other files, such as /etc/kubernetes.
func refuseForeign(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the plane's directory: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	for _, e := range entries {
		if e.Name() == lockFile {
			return nil
		}
	}
	return fmt.Errorf("--dir %s holds files that are not kubeplane's; name an empty directory or a new one", dir)
}

func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the plane's directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("--dir %s is in use by another kubeplane; name another directory or end that one", dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (h *home) clear() error {
	entries, err := os.ReadDir(h.path())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == lockFile {
			continue
		}
		if err := os.RemoveAll(h.path(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// close releases the directory. A temporary one is removed unless keep is set.
func (h *home) close(keep bool) error {
	var err error
	if h.temporary && !keep {
		err = os.RemoveAll(h.path())
	}
	return errors.Join(err, h.lock.Close())
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"context"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// WatchSettings follows a host-settings file: what is changed there is in force
// within one poll interval. A file that cannot be read or is wrong is reported, and
// the last good settings stay. It looks at the content, not at file events: a
// mounted ConfigMap is replaced by a change of symbolic links above it.
func WatchSettings(i *Inventory, file string) manager.Runnable {
	w := &settingsWatcher{inventory: i, file: file}
	w.content, _ = os.ReadFile(file)
	return w
}

type settingsWatcher struct {
	inventory *Inventory
	file      string
	content   []byte
	lastError string
}

// NeedLeaderElection says that every replica follows the file.
func (w *settingsWatcher) NeedLeaderElection() bool { return false }

// Start looks until the context ends.
func (w *settingsWatcher) Start(ctx context.Context) error {
	for {
		timer := w.inventory.options.Clock.NewTimer(w.inventory.options.Interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
			w.reload()
		}
	}
}

// look takes a changed file.
func (w *settingsWatcher) reload() {
	content, err := os.ReadFile(w.file)
	if err == nil && bytes.Equal(content, w.content) {
		w.lastError = ""
		return
	}
	settings, err := LoadSettings(w.file)
	if err != nil {
		if w.lastError != err.Error() { // each problem is told once
			w.lastError = err.Error()
			w.inventory.metrics.settingsReloadFailed()
			w.inventory.options.Log.Error(err, "the changed host settings are not usable, the last ones stay in force")
		}
		return
	}
	w.content, w.lastError = content, ""
	w.inventory.SetSettings(settings)
	w.inventory.options.Log.Info("the host settings changed", "file", w.file)
}

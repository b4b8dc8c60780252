// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/file"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// WatchSettings returns a Runnable that applies changes of a host settings file within one
// poll interval. If the file is missing or invalid, it logs the error and the last good
// settings remain in effect.
func WatchSettings(i *Inventory, path string) manager.Runnable {
	return &settingsWatcher{inventory: i, file: file.Watch(path, declared.LoadSettings)}
}

type settingsWatcher struct {
	inventory *Inventory
	file      *file.Watched[declared.Settings]
}

// NeedLeaderElection returns false: every replica reads the file.
func (w *settingsWatcher) NeedLeaderElection() bool { return false }

// Start checks the file once per interval until the context ends.
func (w *settingsWatcher) Start(ctx context.Context) error {
	for {
		timer := w.inventory.options.Clock.NewTimer(w.inventory.options.PollInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		settings, changed, err := w.file.Changed()
		if err != nil {
			w.inventory.metrics.settingsErrors.Inc()
			w.inventory.options.Log.Error(err, "reloading host settings failed, using last good settings", "file", w.file.Path)
		}
		if changed {
			w.inventory.SetSettings(settings)
			w.inventory.options.Log.Info("reloaded host settings", "file", w.file.Path)
		}
	}
}

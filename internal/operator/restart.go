// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ConfigWatchInterval is how often the files are looked at that are read at the start.
const ConfigWatchInterval = 5 * time.Second

// startFile is a file that everything is built from, once.
type startFile struct {
	what, path string
	// load tells whether a content can be used.
	load    func(path string) error
	content []byte
	problem string
}

func startFiles(o *Options) []*startFile {
	files := []*startFile{{what: "cloud config", path: o.CloudConfig, load: func(path string) error {
		_, err := proxmox.LoadConfig(path)
		return err
	}}}
	if o.InstanceTypesFile != "" {
		files = append(files, &startFile{what: "file of instance types", path: o.InstanceTypesFile, load: func(path string) error {
			_, err := instancetype.Load(path)
			return err
		}})
	}
	return files
}

// StopOnChange gives a context that ends when the cloud config or the file of instance
// types has changed. Which Clusters and types there are is built into everything, so
// the controller ends, Kubernetes starts it again, and launches under way are taken
// up. A file that cannot be used is told and changes nothing: a typo must not take
// down a controller that works.
func StopOnChange(ctx context.Context, settings Settings, every time.Duration) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	files := startFiles(settings.Options)
	for _, file := range files {
		// What was read a moment ago could be read again.
		file.content, _ = os.ReadFile(file.path)
	}
	go func() {
		defer cancel()
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for _, file := range files {
				if file.replaced(ctx) {
					log.FromContext(ctx).Info("a file that is read at the start has changed, ending to be started again with it", "what", file.what, "path", file.path)
					return
				}
			}
		}
	}()
	return ctx
}

// replaced tells whether the file says something else that can be used. It looks at
// the content: a mounted Secret is replaced by a change of links above it.
func (f *startFile) replaced(ctx context.Context) bool {
	content, err := os.ReadFile(f.path)
	if err == nil && bytes.Equal(content, f.content) {
		f.problem = ""
		return false
	}
	if err == nil {
		err = f.load(f.path)
	}
	if err == nil {
		return true
	}
	if f.problem != err.Error() { // each problem is told once
		f.problem = err.Error()
		log.FromContext(ctx).Error(err, "a changed file cannot be used, going on with what was read at the start", "what", f.what, "path", f.path)
	}
	return false
}

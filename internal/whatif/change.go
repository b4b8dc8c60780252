// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// with returns the State after a Change, before Karpenter reacts to it.
func (s *State) with(change Change) (*State, error) {
	out := *s
	out.Snapshots, out.Objects, out.lost = maps.Clone(s.Snapshots), slices.Clone(s.Objects), change.LostHosts
	for _, lost := range change.LostHosts {
		snapshot, ok := out.Snapshots[lost.Region]
		if ok {
			out.Snapshots[lost.Region], ok = snapshot.WithHostOffline(lost.Host)
		}
		if !ok {
			return nil, fmt.Errorf("host %s does not exist; hosts: %s", lost, strings.Join(hostNames(s.Snapshots), ", "))
		}
	}
	for _, object := range change.Objects {
		if err := out.apply(object); err != nil {
			return nil, err
		}
	}
	return &out, nil
}

func hostNames(snapshots map[string]*observed.Snapshot) []string {
	var names []string
	for region, snapshot := range snapshots {
		for host := range snapshot.Hosts {
			names = append(names, observed.HostName{Region: region, Host: host}.String())
		}
	}
	slices.Sort(names)
	return names
}

// apply adds the object of a manifest, or replaces the one with its name. Objects that do
// not affect a plan are ignored.
func (s *State) apply(object client.Object) error {
	if workload, ok := workloadOf(object); ok {
		pods, err := workload.newPods(s.Objects)
		for _, pod := range pods {
			s.Objects = append(s.Objects, pod)
		}
		return err
	}
	switch object.(type) {
	case *karpv1.NodePool, *karpv1alpha1.NodeOverlay, *v1alpha1.ProxmoxNodeClass, *v1alpha1.ProxmoxTemplate, *v1alpha1.ProxmoxUnmanagedTemplate, *appsv1.DaemonSet, *corev1.PersistentVolumeClaim:
	default:
		return nil
	}
	n := slices.IndexFunc(s.Objects, func(o client.Object) bool {
		return reflect.TypeOf(o) == reflect.TypeOf(object) && client.ObjectKeyFromObject(o) == client.ObjectKeyFromObject(object)
	})
	if n < 0 {
		s.Objects = append(s.Objects, object)
		return nil
	}
	s.Objects[n] = replaceSpec(s.Objects[n], object)
	return nil
}

// replaceSpec returns an object with the labels, annotations and spec of a manifest, and
// with the status of the object in the API.
func replaceSpec(stored, manifest client.Object) client.Object {
	out, ok := stored.DeepCopyObject().(client.Object)
	if !ok {
		return manifest
	}
	annotations := maps.Clone(stored.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, manifest.GetAnnotations())
	out.SetAnnotations(annotations)
	out.SetLabels(manifest.GetLabels())
	reflect.ValueOf(out).Elem().FieldByName("Spec").Set(reflect.ValueOf(manifest).Elem().FieldByName("Spec"))
	return out
}

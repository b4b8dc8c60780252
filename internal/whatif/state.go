// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

// State is what a plan starts from. It contains no credentials.
type State struct {
	// Controller has the settings of the controller; its cloud config is not used.
	Controller operator.Deployed
	// KubeCluster is the UID of the namespace kube-system, which identifies the VMs of the
	// Kubernetes cluster.
	KubeCluster string
	// Roots are the regions with a root login.
	Roots []string
	// Snapshots by region.
	Snapshots map[string]*observed.Snapshot
	// Objects of the Kubernetes cluster.
	Objects []client.Object
	// Secrets reads the Secrets of boot data; nil if they are not available, as in a State
	// that was saved.
	Secrets client.Reader
	// lost are the Hosts that a Change powers off.
	lost []observed.HostName
}

// lists returns empty lists of the kinds that core's scheduler and this provider read.
func lists() []client.ObjectList {
	return []client.ObjectList{
		&karpv1.NodePoolList{}, &karpv1.NodeClaimList{}, &karpv1alpha1.NodeOverlayList{},
		&v1alpha1.ProxmoxNodeClassList{}, &v1alpha1.ProxmoxTemplateList{}, &v1alpha1.ProxmoxUnmanagedTemplateList{},
		&corev1.NodeList{}, &corev1.PodList{}, &appsv1.DaemonSetList{}, &corev1.NamespaceList{}, &policyv1.PodDisruptionBudgetList{},
		&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &storagev1.StorageClassList{}, &storagev1.CSINodeList{},
	}
}

// ReadObjects returns the objects of a Kubernetes cluster that a plan needs, and the
// ConfigMaps of hosts in maintenance and of those that were shut down to save energy. Kinds
// that are not installed are skipped.
func ReadObjects(ctx context.Context, kube client.Reader, systemNamespace string) ([]client.Object, error) {
	var out []client.Object
	for _, list := range lists() {
		if err := kube.List(ctx, list); meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("listing objects of type %T: %w", list, err)
		}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			if object, ok := o.(client.Object); ok {
				out = append(out, strip(object))
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("listing objects of type %T: %w", list, err)
		}
	}
	for _, name := range []string{maintenance.ConfigMapName, power.ConfigMapName} {
		hosts := &corev1.ConfigMap{}
		err := kube.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: name}, hosts)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the state of hosts: %w", err)
		}
		if err == nil {
			out = append(out, strip(hosts))
		}
	}
	return out, nil
}

// strip removes what a plan does not need: it may be large or confidential.
func strip(object client.Object) client.Object {
	object.SetManagedFields(nil)
	annotations := maps.Clone(object.GetAnnotations())
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	object.SetAnnotations(annotations)
	switch o := object.(type) {
	case *corev1.Pod:
		stripSpec(&o.Spec)
	case *appsv1.DaemonSet:
		stripSpec(&o.Spec.Template.Spec)
	}
	return object
}

func stripSpec(spec *corev1.PodSpec) {
	spec.EphemeralContainers = nil // they have no requests
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Env, c.EnvFrom, c.Command, c.Args, c.Lifecycle, c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil, nil, nil, nil, nil, nil
		}
	}
}

// savedFormat is the version of the file format. Version 1 has neither root logins nor sleeping hosts.
const savedFormat = 2

// savedState is the content of a file.
type savedState struct {
	Format      int                           `json:"format"`
	Args        []string                      `json:"args,omitempty"`
	Env         map[string]string             `json:"env,omitempty"`
	Files       map[string]string             `json:"files,omitempty"`
	KubeCluster string                        `json:"kubeCluster"`
	Roots       []string                      `json:"roots,omitempty"`
	Snapshots   map[string]*observed.Snapshot `json:"snapshots"`
	Objects     []json.RawMessage             `json:"objects"`
}

// Save writes the State to a file.
func (s *State) Save(path string) error {
	settings, _, err := s.Controller.SettingsWithoutClusters()
	if err != nil {
		return err
	}
	saved := savedState{Format: savedFormat, Args: s.Controller.Args, Env: s.Controller.OptionEnv(), Files: map[string]string{}, KubeCluster: s.KubeCluster, Roots: s.Roots, Snapshots: s.Snapshots}
	for _, file := range []string{settings.Options.NodeSettingFile, settings.Options.InstanceTypesFile} {
		if file == "" {
			continue
		}
		content, err := s.Controller.ReadFile(file)
		if err != nil {
			return err
		}
		saved.Files[file] = string(content)
	}
	for _, object := range s.Objects {
		kind, err := apiutil.GVKForObject(object, scheme.Scheme)
		if err != nil {
			return fmt.Errorf("saving %s: %w", object.GetName(), err)
		}
		object.GetObjectKind().SetGroupVersionKind(kind)
		content, err := json.Marshal(object)
		if err != nil {
			return fmt.Errorf("saving %s %s: %w", kind.Kind, object.GetName(), err)
		}
		saved.Objects = append(saved.Objects, content)
	}
	content, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("encoding the inventory: %w", err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("writing the inventory: %w", err)
	}
	return nil
}

// Load reads a State that was saved. It fails if the file is not one.
func Load(path string) (*State, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the inventory: %w", err)
	}
	saved := savedState{}
	if err := json.Unmarshal(content, &saved); err != nil {
		return nil, fmt.Errorf("reading the inventory %s: %w", path, err)
	}
	if saved.Format != savedFormat {
		return nil, fmt.Errorf("reading the inventory %s: found format %d, want %d: save it again with this version of the plugin", path, saved.Format, savedFormat)
	}
	s := &State{KubeCluster: saved.KubeCluster, Roots: saved.Roots, Snapshots: saved.Snapshots, Controller: operator.Deployed{Args: saved.Args, Env: saved.Env, ReadFile: func(file string) ([]byte, error) {
		content, ok := saved.Files[file]
		if !ok {
			return nil, fmt.Errorf("%s is not in the inventory %s; it contains %v", file, path, slices.Sorted(maps.Keys(saved.Files)))
		}
		return []byte(content), nil
	}}}
	decoder := serializer.NewCodecFactory(scheme.Scheme).UniversalDeserializer()
	for i, content := range saved.Objects {
		object, _, err := decoder.Decode(content, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("reading object %d of the inventory %s: %w", i, path, err)
		}
		if o, ok := object.(client.Object); ok {
			s.Objects = append(s.Objects, o)
		}
	}
	return s, nil
}

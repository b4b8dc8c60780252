// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clientgotesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpenterapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// NewFake returns an Env with a fake Kubernetes API and without a Process. The
// operations on VMs need no API server.
func NewFake(t *testing.T, options ...Option) *Env {
	t.Helper()
	w := newEnv(t, metav1.NamespaceSystem, options)
	w.fake = true
	discardLogs()
	scheme := runtime.NewScheme()
	w.Expect(clientgoscheme.AddToScheme(scheme)).To(gomega.Succeed())
	w.Expect(v1alpha1.AddToScheme(scheme)).To(gomega.Succeed())
	karpenter := schema.GroupVersion{Group: karpenterapis.Group, Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	// The default tracker keeps managed fields, and creates a REST mapper for each write.
	tracker := clientgotesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	w.Kube = fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithStatusSubresource(&karpv1.NodeClaim{}).Build()
	w.makeNamespace()
	w.connect()
	w.NodeClass = w.class()
	w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}}
	w.NodeClass.Status.SelectedZones = w.zones()
	w.foreign = w.foreignGuests()
	return w
}

// discardLogs suppresses the warning of controller-runtime about a missing logger.
var discardLogs = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) })

// zones returns the zones of all Hosts of Region, with the scenario's templates.
func (w *Env) zones() []string {
	var out []string
	for i := range w.setup.hosts {
		out = append(out, fmt.Sprintf("%s/pve%d/%d", Region, i+1, 9000+i))
	}
	return out
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Registrar registers a controller.
type Registrar interface {
	Register(context.Context, manager.Manager) error
}

// IndexFields adds the indexes of Karpenter's operator for the kinds of objects.
func IndexFields(t testing.TB, m manager.Manager, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		fields, err := indexedFields(object)
		Must(t, err)
		delete(fields, "metadata.uid") // our controllers add it
		for field := range fields {
			Must(t, m.GetFieldIndexer().IndexField(t.Context(), object, field, func(o client.Object) []string {
				set, _ := indexedFields(o) // it is of the same kind
				return []string{set[field]}
			}))
		}
	}
}

// StartManager runs controllers under a manager whose cache has only the objects of this Env.
// They are created with the manager's client.
func (w *Env) StartManager(makers ...func(kube client.Client) Registrar) {
	w.T.Helper()
	m, err := ctrl.NewManager(w.Config, ctrl.Options{
		Scheme:     scheme.Scheme,
		Metrics:    server.Options{BindAddress: "0"},
		Cache:      cache.Options{DefaultLabelSelector: labels.SelectorFromSet(labels.Set{envLabel: w.Name})},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	IndexFields(w.T, m, NewNodeClaim("", "", ""))
	for _, maker := range makers {
		w.Expect(maker(m.GetClient()).Register(w.T.Context(), m)).To(gomega.Succeed())
	}
	Go(w.T, m.Start)
	w.Expect(m.GetCache().WaitForCacheSync(w.T.Context())).To(gomega.BeTrue())
}

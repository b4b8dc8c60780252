// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"      //nolint:staticcheck // its replacement would be a dependency of this test only
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //nolint:staticcheck // its replacement would be a dependency of this test only
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/webpage"
)

// startUI serves a map by the web page and the proxy of ui, and returns the address for a browser. The port-forward between
// them needs a kubelet, which the test has not.
func startUI(w *testenv.Env, account string, read func(context.Context) (fleet.Map, error)) string {
	w.T.Helper()
	client, err := rest.HTTPClientFor(w.Config)
	w.Expect(err).NotTo(HaveOccurred())
	page, err := webpage.NewServer(w.T.Context(), "127.0.0.1:0", w.Config, client, webpage.Page{Read: read})
	w.Expect(err).NotTo(HaveOccurred())
	testenv.Go(w.T, page.Start)
	user := rest.AnonymousClientConfig(w.Config)
	user.BearerToken = testenv.TokenAllowedToGet(w.T, w.Config, account, webpage.Path)
	user.Proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("the page is on this machine") }
	proxy, err := newUIProxy(page.Listener.Addr().String(), user)
	w.Expect(err).NotTo(HaveOccurred())
	local := httptest.NewServer(proxy)
	w.T.Cleanup(local.Close)
	return proxy.address(local.Listener.Addr().String())
}

func TestUIProxy(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	address := startUI(w, w.Name, func(context.Context) (fleet.Map, error) { return sampleFleet(), nil })
	jar, err := cookiejar.New(nil)
	w.Expect(err).NotTo(HaveOccurred())
	expect := func(client *http.Client, url string, matcher types.GomegaMatcher, reason ...any) {
		t.Helper()
		response, err := client.Get(url)
		w.Expect(err).NotTo(HaveOccurred())
		defer func() { w.Expect(response.Body.Close()).To(Succeed()) }()
		w.Expect(response).To(matcher, reason...)
	}
	forbidden, allowed := HaveHTTPStatus(http.StatusForbidden), HaveHTTPStatus(http.StatusOK)
	base, _, _ := strings.Cut(address, "/?")
	expect(&http.Client{}, base+webpage.Path, forbidden, "without the key")
	expect(&http.Client{}, base+"/?key=guess", forbidden, "with another key")
	browser := &http.Client{Jar: jar}
	expect(browser, address, And(allowed, HaveHTTPBody(ContainSubstring("VM 20002"))))
	expect(browser, base+webpage.Path+"?nodepool=default", And(allowed, HaveHTTPBody(Not(ContainSubstring("VM 20002")))), "the cookie is sufficient")

	second := startUI(w, w.Named("second"), func(context.Context) (fleet.Map, error) { return sampleFleet(), nil })
	expect(browser, second, allowed)
	expect(browser, base+webpage.Path, allowed, "browsers send a cookie to all ports, so a second session must not overwrite it")
}

func TestUIErrors(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	_, _, err := findWebPage(t.Context(), w.Kube, "")
	w.Expect(err).To(MatchError("no Deployment has a container with the flag --cloud-config: is the controller installed?"))
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "controller", Image: "i", Args: []string{"--cloud-config=/etc/proxmox/config.yaml"}}}}
	deployment := deploymentOf(w, "controller", spec)
	w.Create(deployment)
	_, _, err = findWebPage(t.Context(), w.Kube, "")
	w.Expect(err).To(MatchError("the controller in Deployment " + w.Name + "/controller does not serve the page: set the chart value settings.webPagePort, for example to 8443"))
	deployment.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "webpage", ContainerPort: 8443}}
	w.Expect(w.Kube.Update(t.Context(), deployment)).To(Succeed())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "controller-1", Labels: deployment.Spec.Template.Labels}, Spec: spec}
	w.Create(pod)
	_, _, err = findWebPage(t.Context(), w.Kube, "")
	w.Expect(err).To(MatchError("no pod of Deployment " + w.Name + "/controller is running"))
	pod.Status.Phase = corev1.PodRunning
	w.Expect(w.Kube.Status().Update(t.Context(), pod)).To(Succeed())
	found, port, err := findWebPage(t.Context(), w.Kube, w.Name+"/controller")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(found.Name).To(Equal("controller-1"))
	w.Expect(port).To(Equal(int32(8443)))
	checkLostConnection(w)
	certificate := &rest.Config{}
	_, err = uiOptions{}.user(t.Context(), certificate)
	w.Expect(err).To(MatchError("your kubeconfig has no token, and the page does not accept client certificates: use --service-account NAMESPACE/NAME"))
	_, err = uiOptions{serviceAccount: "viewer"}.user(t.Context(), certificate)
	w.Expect(err).To(MatchError(`--service-account: found "viewer", want NAMESPACE/NAME`))
	_, err = uiOptions{serviceAccount: "default/absent-" + w.Name}.user(t.Context(), w.Config)
	w.Expect(err).To(MatchError(ContainSubstring("requesting a token of service account default/absent-" + w.Name)))
}

// checkLostConnection checks that the command ends when the connection to the pod is lost, for example because it was restarted.
func checkLostConnection(w *testenv.Env) {
	w.T.Helper()
	drop := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if _, err := httpstream.Handshake(request, response, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		connection := spdy.NewResponseUpgrader().UpgradeResponse(response, request, func(httpstream.Stream, <-chan struct{}) error { return nil })
		<-drop
		_ = connection.Close()
	}))
	w.T.Cleanup(api.Close)
	reader, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- uiOptions{noBrowser: true}.run(w.T.Context(), &rest.Config{Host: api.URL, BearerToken: "t"}, w.Kube, out)
	}()
	_, err := reader.Read(make([]byte, 1024)) // the address: the port is forwarded
	w.Expect(err).NotTo(HaveOccurred())
	close(drop)
	w.Eventually(ended).Should(Receive(MatchError("the port-forward to pod " + w.Name + "/controller-1 ended: lost connection to pod; run the command again")))
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package webpage_test

import (
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"testing"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/webpage"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// TestServer checks who may read the page: users with a valid token who are allowed to get its path.
func TestServer(t *testing.T) {
	t.Parallel()
	g, config := NewWithT(t), testenv.APIServer(t)
	page := webpage.Page{Read: func(context.Context) (fleet.Map, error) { return sample(), nil }}
	client, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	server, err := webpage.NewServer(t.Context(), "127.0.0.1:0", config, client, page)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.NeedLeaderElection()).To(BeFalse(), "each replica serves the page")
	testenv.Go(t, server.Start)

	suffix := "-" + uuid.NewString() // the API server keeps the objects of the last run
	address := "https://" + server.Listener.Addr().String() + webpage.Path
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for _, test := range []struct {
		token string
		code  int
		body  string
	}{
		{"", http.StatusUnauthorized, "Unauthorized: the request has no token, or the token is invalid or has expired\n"},
		{"none", http.StatusUnauthorized, "Unauthorized: the request has no token, or the token is invalid or has expired\n"},
		{
			testenv.TokenAllowedToGet(t, config, "web-page-other"+suffix, "/other"), http.StatusForbidden,
			"Forbidden: user system:serviceaccount:default:web-page-other" + suffix + " may not get /proxmox\n",
		},
		{testenv.TokenAllowedToGet(t, config, "web-page-viewer"+suffix, webpage.Path), http.StatusOK, "VM 20001"},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		g.Expect(err).NotTo(HaveOccurred())
		if test.token != "" {
			request.Header.Set("Authorization", "Bearer "+test.token)
		}
		response, err := insecure.Do(request)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		g.Expect(response).To(And(HaveHTTPStatus(test.code), HaveHTTPBody(ContainSubstring(test.body))))
	}
	_, err = webpage.NewServer(t.Context(), server.Listener.Addr().String(), config, client, page)
	g.Expect(err).To(MatchError(ContainSubstring("listening for the web page")))
}

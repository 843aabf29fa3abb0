"""Bayesian optimisation with a Gaussian process, in NumPy and SciPy.

Notation
    X           n × d matrix of encoded points, x one of them
    y           n transformed values, smaller is better, mean 0 and variance 1
    ℓ           a length scale per parameter: the distance over which results are similar
    s², a²      variance of the parameters' joint effect, variance of their separate effects
    σ²          variance of the noise
    K           k(X, X) + σ² I, with Cholesky factor L and α = K⁻¹ y
    μ(x), v(x)  posterior mean and variance of the function, without noise
    θ           the logarithms of all ℓ, s², a² and σ²

Papers
    Posterior, likelihood: Rasmussen, Williams: Gaussian Processes for Machine Learning (2006),
        equations 2.25, 2.26, 5.9
    Additive part of the kernel: Duvenaud, Nickisch, Rasmussen: Additive Gaussian processes (2011)
    Expected improvement averaged over samples of θ: Snoek, Larochelle, Adams: Practical Bayesian
        Optimization (2012)
    Samples of θ: Murray, Adams, MacKay: Elliptical slice sampling (2010)
    Logarithm of the expected improvement: Ament et al.: Unexpected Improvements to Expected
        Improvement (2023, arXiv 2310.20708)
    Pending points at the model's own prediction: Ginsbourger, Le Riche, Carraro: Kriging is
        well-suited to parallelize optimization (2010)
    Lengths that grow with √d: Hvarfner, Hellsten, Nardi: Vanilla Bayesian optimization performs
        great in high dimensions (2024, arXiv 2402.02229)
    Rounded inputs of the kernel: Garrido-Merchán, Hernández-Lobato: Dealing with categorical and
        integer-valued variables (2020, arXiv 1805.03463)
    Prior mean from other tasks' posteriors: Tighineanu et al.: Scalable meta-learning with Gaussian
        processes (2023, arXiv 2312.00742)
    Start-up trials that do well on other tasks: Wistuba, Schilling, Schmidt-Thieme: Sequential
        model-free hyperparameter tuning (2015)
"""
